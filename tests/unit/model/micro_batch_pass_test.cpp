// SPDX-License-Identifier: Apache-2.0
//
// Properties of micro-batch passes over all kinds of models, and the transformer head's tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "model_fixture.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/loss.hpp"

namespace trireme::model {
namespace {

using test::ModelFixture;
using test::ModelFixtureOptions;
using test::small_gpt;
using test::small_resnet;

std::vector<std::byte> bytes(const Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.data);
  return {data, data + tensor.bytes()};
}

std::vector<ModelFixtureOptions> all_kinds() {
  std::vector<ModelFixtureOptions> all;
  for (const test::SmallModel& small : test::small_models())
    all.push_back({.model = small.options, .input = small.input, .classes = small.classes});
  return all;
}

TEST(SmallModels, AreOfAllFamilies) {
  for (const Family* family : families())
    EXPECT_TRUE(std::ranges::any_of(test::small_models(), [&](const test::SmallModel& small) {
      return &family_of(small.options) == family;
    })) << family->word;
}

TEST(MicroBatchPass, ForwardIsAFunctionOfWeightsInputAndKeys) {
  for (const ModelFixtureOptions& options : all_kinds()) {
    ModelFixture fixture(options);
    fixture.gradients();
    const std::vector<std::byte> weights = bytes(fixture.store.flat_master()),
                                 gradients = bytes(fixture.store.flat_gradient());
    const std::vector<std::byte> once = bytes(fixture.forward(true));
    const std::vector<std::byte> again = bytes(fixture.forward(true));
    EXPECT_TRUE(once == again);
    EXPECT_TRUE(bytes(fixture.store.flat_master()) == weights);
    EXPECT_TRUE(bytes(fixture.store.flat_gradient()) == gradients);
  }
}

TEST(MicroBatchPass, EveryBlockTakesBackItsSavedTensors) {
  for (const ModelFixtureOptions& options : all_kinds()) {
    ModelFixture fixture(options);
    fixture.forward(true);
    EXPECT_GT(fixture.pass.saved_count(), 0u);
    fixture.gradients();
    EXPECT_EQ(fixture.pass.saved_count(), 0u);
    fixture.evaluate();
    EXPECT_EQ(fixture.pass.saved_count(), 0u);
  }
}

TEST(MicroBatchPass, BoundariesAreTheShapesThatBlocksTake) {
  for (const ModelFixtureOptions& options : all_kinds()) {
    ModelFixture fixture(options);
    EXPECT_EQ(fixture.model.block_input_shape(0), options.input);
    const Tensor x = fixture.forward(true);
    EXPECT_EQ(fixture.model.block_input_shape(fixture.model.block_count()).elements(),
              x.elements());
    EXPECT_EQ(fixture.model.block_input_shape(fixture.model.block_count()), x.shape);
  }
}

TEST(MicroBatchPass, MetaMeasuresAllMemory) {
  for (ModelFixtureOptions options : all_kinds()) {
    for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
      if (!takes_tokens(options.model) && compute != DType::float32)
        // The fixture's images are float32.
        continue;
      options.compute = compute;
      ModelFixture fixture(options);
      fixture.exercise();
      EXPECT_EQ(fixture.peaks(), ModelFixture::measure(options));
    }
  }
}

TEST(MicroBatchPass, DropoutIsOffInEvaluation) {
  ModelFixture with(small_gpt(false, 0.5)), without(small_gpt(false, 0));
  EXPECT_EQ(with.evaluate(), without.evaluate());
  EXPECT_NE(with.gradients(), without.gradients());
}

/// Returns the calls of ops of this name in a forward and backward, and in an evaluation.
std::array<int, 2> calls_of(ops::Op op, const ModelFixtureOptions& options) {
  ModelFixture fixture(options);
  int calls = 0;
  fixture.context.set_op_observer([&](const ops::OpCall& call) { calls += call.op == op ? 1 : 0; });
  fixture.gradients();
  const int training = std::exchange(calls, 0);
  fixture.evaluate();
  return {training, calls};
}

TEST(MicroBatchPass, DropoutThatDropsNothingIsNoWork) {
  // The embedding calls it in forward and backward, the two branches of both blocks in backward.
  EXPECT_EQ(calls_of("dropout", small_gpt(false, 0.1)), (std::array{6, 0}));
  EXPECT_EQ(calls_of("dropout", small_gpt(false, 0)), (std::array{0, 0}));
}

// On the CPU, products in float16 always read a prepared form: the weight in float32.
TEST(MicroBatchPass, UpdatesKeepPreparedFormsOfFrozenWeightsAlone) {
  for (const char* name : {"h.0.attn.c_attn.weight", "h.1.mlp.c_proj.weight", "lm_head.weight"}) {
    for (const bool is_frozen : {false, true}) {
      ModelFixtureOptions options = small_gpt();
      options.model.as<TransformerOptions>().tie_embeddings = false;
      options.compute = DType::float16;
      if (is_frozen) options.frozen = {name};
      ModelFixture fixture(options);
      const std::array<double, 4> before = fixture.evaluate();
      const parallel::ParameterId id{static_cast<std::int32_t>(fixture.list.find(name))};
      ops::fill(fixture.context, fixture.store.weight(id), 0);
      EXPECT_EQ(fixture.evaluate(), before) << "no update";
      fixture.store.weights_changed();
      EXPECT_EQ(fixture.evaluate() == before, is_frozen) << name;
      fixture.store.refresh_working(fixture.context);
      EXPECT_EQ(fixture.evaluate(), before) << "the weight itself again";
    }
  }
}

TEST(BatchNorm, GradientsOfRunningStatisticsAreTheBatchsOwn) {
  ModelFixture fixture(small_resnet());
  fixture.gradients();
  const auto statistic = [&](const char* name) {
    const Tensor g = fixture.store.gradient({static_cast<std::int32_t>(fixture.list.find(name))});
    return std::vector<float>(g.as<float>(), g.as<float>() + g.elements());
  };
  const std::vector<float> mean = statistic("bn1.running_mean"),
                           variance = statistic("bn1.running_var");
  fixture.gradients(ops::Write::add);  // the same batch again, also with weight 1
  for (std::size_t c = 0; c < mean.size(); ++c) {
    EXPECT_EQ(statistic("bn1.running_mean")[c], 2 * mean[c]);
    EXPECT_EQ(statistic("bn1.running_var")[c], 2 * variance[c]);
    EXPECT_GT(variance[c], 0);
  }
}

// 130 rows of 131072 tokens are processed in three tiles of at most 64 rows. The reference is the
// loss operation on whole logits, which are computed row by row.
TEST(TransformerHead, TilesGiveTheLossOfWholeLogits) {
  for (const bool tied : {true, false}) {
    ModelFixtureOptions options = small_gpt();
    options.input = {2, 65};
    options.classes = 131072;
    options.label_smoothing = 0.1f;
    options.model.as<TransformerOptions>().layers = 1;
    options.model.as<TransformerOptions>().width = 16;
    options.model.as<TransformerOptions>().context = 65;
    options.model.as<TransformerOptions>().vocabulary = options.classes;
    options.model.as<TransformerOptions>().tie_embeddings = tied;
    ModelFixture fixture(options);
    const std::array<double, 4> sums = fixture.evaluate();

    const std::int64_t rows = fixture.labels().elements();
    Arena memory({DeviceKind::cpu, 0}, "logits", (rows + 1) * options.classes * 4 + 4096);
    const Tensor whole = memory.allocate(DType::float32, {rows, options.classes}),
                 expected = memory.allocate(DType::float64, {4});
    for (std::int64_t row = 0; row < rows; ++row) {
      const Tensor logits = fixture.logits(row);
      ASSERT_EQ(logits.shape, (Shape{1, options.classes}));
      std::memcpy(whole.rows(row, row + 1).data, logits.data,
                  static_cast<std::size_t>(logits.bytes()));
    }
    ops::cross_entropy(fixture.context, whole, {fixture.labels(), options.label_smoothing}, 0,
                       expected, {});
    // Tolerance: float32 rounding of a row's loss.
    EXPECT_NEAR(sums[0], expected.as<double>()[0], 1e-6 * sums[0]);
    for (int i = 1; i < 4; ++i)
      EXPECT_EQ(sums[static_cast<std::size_t>(i)], expected.as<double>()[i]);
  }
}

// 520 rows of 131072 tokens: nine tiles in two groups. The table's first rows are set to the
// identity, so their logits reveal the input of the projection. With that input the reference
// gradient of other rows is summed in double precision.
TEST(TransformerHead, GroupsOfTilesGiveTheGradientOfWholeLogits) {
  constexpr std::int64_t width = 16, looked_at = 24;
  ModelFixtureOptions options = small_gpt();
  options.input = {8, 65};
  options.classes = 131072;
  options.model.as<TransformerOptions>().layers = 1;
  options.model.as<TransformerOptions>().width = width;
  options.model.as<TransformerOptions>().context = 65;
  options.model.as<TransformerOptions>().vocabulary = options.classes;
  options.model.as<TransformerOptions>().tie_embeddings = false;
  ModelFixture fixture(options);
  const parallel::ParameterId id{static_cast<std::int32_t>(fixture.list.find("lm_head.weight"))};
  const Tensor table = fixture.store.weight(id);
  for (std::int64_t i = 0; i < width * width; ++i)
    table.as<float>()[i] = i % (width + 1) == 0 ? 1 : 0;

  const Tensor labels = fixture.labels();
  const std::int64_t rows = labels.elements();
  double valid = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (labels.as<std::int32_t>()[row] < 0) continue;
    labels.as<std::int32_t>()[row] = static_cast<std::int32_t>(width + row % looked_at);
    ++valid;
  }
  std::vector<double> expected(looked_at * width), terms(looked_at * width);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t label = labels.as<std::int32_t>()[row];
    if (label < 0) continue;
    const Tensor logits = fixture.logits(row);
    const float* z = logits.as<float>();
    double exponentials = 0;
    for (std::int64_t c = 0; c < options.classes; ++c)
      exponentials += std::exp(static_cast<double>(z[c]));
    for (std::int64_t c = 0; c < looked_at; ++c) {
      const double slope = (std::exp(static_cast<double>(z[width + c])) / exponentials -
                            (label == width + c ? 1 : 0)) /
                           valid;
      for (std::int64_t i = 0; i < width; ++i) {
        expected[static_cast<std::size_t>(c * width + i)] += slope * z[i];
        terms[static_cast<std::size_t>(c * width + i)] += std::abs(slope * z[i]);
      }
    }
  }
  fixture.gradients();
  const float* found = fixture.store.gradient(id).as<float>() + width * width;
  for (std::size_t i = 0; i < expected.size(); ++i)
    // 520 sums in float32, each with an error of at most 6e-8.
    EXPECT_NEAR(found[i], expected[i], 1e-5 * terms[i]) << i;
}

TEST(TransformerHead, CountsTheRightOnes) {
  ModelFixture fixture(small_gpt());
  // Row r gets the label with the r-th largest logit: only row 0 is ranked first, rows 0 to 4 are
  // among the first five.
  const Tensor labels = fixture.labels();
  for (std::int64_t row = 0; row < labels.elements(); ++row) {
    const Tensor logits = fixture.logits(row);
    std::vector<std::pair<float, std::int32_t>> order;
    for (std::int32_t c = 0; c < 37; ++c) order.emplace_back(-logits.as<float>()[c], c);
    std::sort(order.begin(), order.end());
    labels.as<std::int32_t>()[row] = order[static_cast<std::size_t>(row)].second;
  }
  const std::array<double, 4> sums = fixture.evaluate();
  EXPECT_EQ(sums[1], static_cast<double>(labels.elements()));
  EXPECT_EQ(sums[2], 1);
  EXPECT_EQ(sums[3], 5);
}

}  // namespace
}  // namespace trireme::model
