// SPDX-License-Identifier: Apache-2.0
//
// Gradients of all tensors against finite differences of the loss, and in lower precision against
// float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model_fixture.hpp"

namespace trireme::model {
namespace {

using test::ModelFixture;
using test::ModelFixtureOptions;
using test::small_gpt;
using test::small_resnet;

std::vector<float> flat_gradient(const ModelFixture& fixture) {
  const Tensor flat = fixture.store.flat_gradient();
  return {flat.as<float>(), flat.as<float>() + flat.elements()};
}

/// Step size of the finite difference and its tolerance.
struct DifferenceStep {
  double weight_change = 0.002;  ///< norm of the weights' change
  double loss_change = 0.003;    ///< largest change of the loss: a deep network's gradient is steep
  /// Smallest gradient norm that is checked; below it float32 rounding of the loss dominates.
  double min_gradient_norm = 0.005;
  double tolerance = 0.05;
};

/// Along a tensor's own gradient g the loss has the slope |g|^2. Compares it with the central
/// difference. Returns the number of tensors whose gradient is large enough to check.
int check_gradients(ModelFixture& fixture, const DifferenceStep& difference_step) {
  fixture.store.weights_changed();
  fixture.gradients();
  const std::vector<float> gradient = flat_gradient(fixture);
  float* weights = fixture.store.flat_master().as<float>();
  const std::vector<float> start(weights, weights + fixture.layout.elements());

  const auto& entries = fixture.list.entries();
  int checked = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].spec.role == parallel::Role::statistic) continue;
    const auto& slot = fixture.layout.tensor({static_cast<std::int32_t>(i)});
    double square = 0;
    for (std::int64_t e = 0; e < slot.elements; ++e)
      square += std::pow(gradient[static_cast<std::size_t>(slot.offset + e)], 2);
    EXPECT_TRUE(std::isfinite(square)) << entries[i].spec.name;
    if (!(square > difference_step.min_gradient_norm * difference_step.min_gradient_norm)) continue;
    const auto loss_at = [&](double scale) {
      for (std::int64_t e = slot.offset; e < slot.offset + slot.elements; ++e) {
        weights[e] = static_cast<float>(start[static_cast<std::size_t>(e)] +
                                        scale * gradient[static_cast<std::size_t>(e)]);
      }
      fixture.store.weights_changed();
      return fixture.gradients();
    };
    const double step = std::min(difference_step.weight_change / std::sqrt(square),
                                 difference_step.loss_change / square);
    double ratio = 0;
    // The step may cross ReLU kinks. A correct gradient matches at some step size, a wrong one at
    // none.
    for (const double part : {1.0, 0.25, 0.0625}) {
      const double slope = (loss_at(part * step) - loss_at(-part * step)) / (2 * part * step);
      if (std::abs(slope / square - 1) < std::abs(ratio - 1)) ratio = slope / square;
      if (std::abs(ratio - 1) <= difference_step.tolerance) break;
    }
    loss_at(0);
    EXPECT_NEAR(ratio, 1.0, difference_step.tolerance)
        << entries[i].spec.name << " gradient norm " << std::sqrt(square);
    ++checked;
  }
  return checked;
}

/// The step is small against the distance to most ReLU kinks, whose crossing is the main error.
/// With |g| >= 0.005 the loss still changes by 1e-5, a hundred times the float32 rounding of the
/// mean loss of ten samples. Most biases of a deep network have smaller gradients and are not
/// checked.
void check_convolutions(const ModelFixtureOptions& options, float branch_scale = 1,
                        const DifferenceStep& difference_step = {}) {
  ModelFixture fixture(options);
  for (std::size_t i = 0; i < fixture.list.entries().size(); ++i) {
    const Tensor scale = fixture.store.master({static_cast<std::int32_t>(i)});
    if (fixture.list.entries()[i].spec.name.ends_with(".bn3.weight"))
      std::fill_n(scale.as<float>(), scale.elements(), branch_scale);
  }
  EXPECT_GE(check_gradients(fixture, difference_step),
            static_cast<int>(fixture.list.entries().size()) / 4);
}

TEST(Gradient, ResnetFollowsFiniteDifferences) { check_convolutions(small_resnet()); }

TEST(Gradient, BottlenecksAndThePooledStemFollowFiniteDifferences) {
  ModelFixtureOptions options = small_resnet(50, 4);
  options.model.as<ResnetOptions>().stem = ResnetStem::imagenet;
  options.model.as<ResnetOptions>().norm = ImageNormKind::group;
  options.input = {10, 64, 64, 3};
  // 16 residual branches of full scale make the loss too rough for differences in float32, so they
  // are scaled by 0.1. The slope's error falls with the step: 8 % at 0.002, 2 % at 0.0005. It is
  // larger than at 8 layers: 50 layers round ten times as much, and pooling adds kinks.
  check_convolutions(options, 0.1f, {.weight_change = 0.0005, .min_gradient_norm = 0.05});
}

TEST(Gradient, GroupNormAndSmoothingFollowFiniteDifferences) {
  ModelFixtureOptions options = small_resnet();
  options.model.as<ResnetOptions>().norm = ImageNormKind::group;
  options.label_smoothing = 0.1f;
  check_convolutions(options);
}

TEST(Gradient, MlpFollowsFiniteDifferences) {
  ModelFixtureOptions options = small_resnet();
  options.model = test::mlp({32, 16});
  check_convolutions(options);
}

TEST(Gradient, ChainsFollowFiniteDifferences) {
  for (const ModelOptions& model :
       {test::chain_of_convolutions("batch"), test::chain_of_convolutions("group"),
        test::chain_of_tokens()}) {
    ModelFixtureOptions options = small_resnet();
    options.model = model;
    check_convolutions(options);
  }
}

/// A transformer is smooth, so only rounding limits the slope. The loss changes by 2 * move * |g|
/// >= 6e-5 and is accurate to about 1e-7 (16 rows in float32, added in double). The error of the
/// difference, move^2 times a third derivative of order 10, is as small.
///
/// Weights ten times their initial size and biases other than 0 make every tensor's gradient large
/// enough to check.
void check_transformer(const ModelFixtureOptions& options) {
  ModelFixture fixture(options);
  const Tensor flat = fixture.store.flat_master();
  for (std::size_t i = 0; i < fixture.list.entries().size(); ++i) {
    const auto& slot = fixture.layout.tensor({static_cast<std::int32_t>(i)});
    const bool matrix = fixture.list.entries()[i].spec.shape.rank() > 1;
    for (std::int64_t e = slot.offset; e < slot.offset + slot.elements; ++e) {
      float& weight = flat.as<float>()[e];
      weight =
          matrix ? 10 * weight
                 : weight + 0.2f * static_cast<float>(normal_at(9, static_cast<std::uint64_t>(e)));
    }
  }
  EXPECT_EQ(check_gradients(fixture, {.weight_change = 0.01,
                                      .loss_change = 0.02,
                                      .min_gradient_norm = 0.003,
                                      .tolerance = 0.01}),
            static_cast<int>(fixture.list.entries().size()));
}

TEST(Gradient, Gpt2FollowsFiniteDifferences) { check_transformer(small_gpt()); }

TEST(Gradient, VitFollowsFiniteDifferences) {
  for (const VitPool pool : {VitPool::token, VitPool::mean}) {
    ModelFixtureOptions options = small_resnet();
    options.model = test::small_vit(pool);
    for (const bool is_map : {false, true}) {
      options.is_map = is_map;
      check_transformer(options);
    }
  }
}

TEST(Gradient, LlamaFollowsFiniteDifferences) { check_transformer(small_gpt(true)); }

TEST(Gradient, OtherBasesAndEpsilonsFollowFiniteDifferences) {
  for (const bool llama : {false, true}) {
    ModelFixtureOptions options = small_gpt(llama);
    options.model.as<TransformerOptions>().norm_epsilon = 0.05;
    options.model.as<TransformerOptions>().rope_base = 20;
    check_transformer(options);
  }
}

/// GPT-2 has no rotary positions, and both forms have norms.
TEST(Model, BaseAndEpsilonChangeTheLossOfTheFormsThatHaveThem) {
  for (const bool llama : {false, true}) {
    const auto loss = [&](double base, double epsilon) {
      ModelFixtureOptions options = small_gpt(llama);
      options.model.as<TransformerOptions>().rope_base = base;
      options.model.as<TransformerOptions>().norm_epsilon = epsilon;
      return ModelFixture(options).gradients();
    };
    EXPECT_EQ(loss(20, 1e-5) != loss(10000, 1e-5), llama);
    EXPECT_NE(loss(10000, 1e-2), loss(10000, 1e-5));
  }
}

TEST(Gradient, DropoutFollowsFiniteDifferences) {
  check_transformer(small_gpt(false, 0.2));
  check_transformer(small_gpt(true, 0.2));
}

/// Stochastic depth drops the branches of the same samples in every pass: with 0.2 some are
/// dropped, and every branch has a sample that keeps it.
TEST(Gradient, StochasticDepthFollowsFiniteDifferences) {
  for (const bool llama : {false, true}) {
    for (const double dropout : {0.0, 0.2}) {
      ModelFixtureOptions options = small_gpt(llama, dropout);
      options.model.as<TransformerOptions>().drop_path = 0.2;
      check_transformer(options);
    }
  }
  for (const ImageNormKind norm : {ImageNormKind::batch, ImageNormKind::group}) {
    ModelFixtureOptions options = small_resnet();
    options.model.as<ResnetOptions>().drop_path = 0.4;
    options.model.as<ResnetOptions>().norm = norm;
    check_convolutions(options);
  }
}

TEST(Model, StochasticDepthIsLinearInTheBlocks) {
  EXPECT_EQ(drop_path_at(0.5, 0, 5), 0);
  EXPECT_EQ(drop_path_at(0.5, 2, 5), 0.25);
  EXPECT_EQ(drop_path_at(0.5, 4, 5), 0.5);
  EXPECT_EQ(drop_path_at(0.5, 0, 1), 0);
}

/// In evaluation no branch is dropped, and with probability 0 none in training.
TEST(Model, StochasticDepthIsOffInEvaluation) {
  for (ModelFixtureOptions options : {small_gpt(), small_gpt(true), small_resnet()}) {
    ModelFixture plain(options);
    if (takes_tokens(options.model))
      options.model.as<TransformerOptions>().drop_path = 0.9;
    else
      options.model.as<ResnetOptions>().drop_path = 0.9;
    ModelFixture dropping(options);
    const auto expected = plain.evaluate(), found = dropping.evaluate();
    // Residual sums are rounded in another order where they are not part of a product.
    EXPECT_NEAR(found[0], expected[0], 1e-5 * expected[0]);
    EXPECT_NE(dropping.gradients(), plain.gradients());
  }
}

/// In float32 the fused kernel adds in the same order on the CPU.
TEST(Gradient, FusedSoftmaxHasTheBitsOfTheStepsInFloat32) {
  for (ModelFixtureOptions options : {small_gpt(), small_gpt(true)}) {
    options.label_smoothing = 0.1f;
    ModelFixture plain(options);
    options.context.fused_softmax = true;
    ModelFixture fused(options);
    EXPECT_EQ(fused.gradients(), plain.gradients());
    EXPECT_EQ(flat_gradient(fused), flat_gradient(plain));
    EXPECT_EQ(fused.evaluate(), plain.evaluate());
    EXPECT_EQ(fused.peaks(), plain.peaks());
  }
}

/// Logits are rounded to bfloat16: by up to 2^-9 of their size, which the loss takes once. They are
/// below 1 here.
TEST(Gradient, FusedSoftmaxRoundsLogitsToBfloat16) {
  ModelFixtureOptions options = small_gpt();
  options.compute = DType::bfloat16;
  ModelFixture plain(options);
  options.context.fused_softmax = true;
  ModelFixture fused(options);
  const double loss = plain.gradients();
  EXPECT_NEAR(fused.gradients(), loss, 0x1p-8);
  const std::vector<float> expected = flat_gradient(plain), found = flat_gradient(fused);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(expected[i] - found[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_GT(difference, 0);  // the key has an effect
  EXPECT_LT(std::sqrt(difference / norm), 0x1p-7);
}

/// The sum in front of the ReLU is rounded in another order. That moves an output by a few float32
/// roundings. Two of the three blocks have a convolution on the shortcut.
TEST(Gradient, JoinedNormsAreTheNormsOfBlockAndShortcut) {
  ModelFixtureOptions options = small_resnet();
  ModelFixture plain(options);
  options.context.joined_norms = true;
  ModelFixture joined(options);
  const double error = 1e-4, loss = plain.gradients();
  EXPECT_NEAR(joined.gradients(), loss, error * loss);
  const std::vector<float> expected = flat_gradient(plain), found = flat_gradient(joined);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(expected[i] - found[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), error);
  EXPECT_EQ(joined.evaluate(), plain.evaluate());
  joined.exercise();
  EXPECT_EQ(joined.peaks(), ModelFixture::measure(options));
  // The results of two shortcuts' norms are not kept: of 16 channels on 4 x 4 and 32 on 2 x 2.
  constexpr int activations = 2;
  const std::int64_t less = 10 * (16 * 4 * 4 + 32 * 2 * 2) * std::int64_t{sizeof(float)};
  EXPECT_EQ(plain.peaks()[activations] - joined.peaks()[activations], less);
}

TEST(Gradient, JoinedNormsFollowFiniteDifferences) {
  ModelFixtureOptions options = small_resnet();
  options.context.joined_norms = true;
  check_convolutions(options);
}

TEST(Gradient, MixedFormsAndSmoothingFollowFiniteDifferences) {
  ModelFixtureOptions gpt2 = small_gpt();
  gpt2.model.as<TransformerOptions>().mlp = MlpKind::swiglu;
  gpt2.model.as<TransformerOptions>().norm = NormKind::rms;
  gpt2.model.as<TransformerOptions>().kv_heads = 1;
  gpt2.model.as<TransformerOptions>().tie_embeddings = false;
  gpt2.label_smoothing = 0.1f;
  check_transformer(gpt2);
  ModelFixtureOptions llama = small_gpt(true);
  llama.model.as<TransformerOptions>().mlp = MlpKind::gelu;
  llama.model.as<TransformerOptions>().norm = NormKind::layer;
  llama.model.as<TransformerOptions>().bias = llama.model.as<TransformerOptions>().tie_embeddings =
      true;
  check_transformer(llama);
}

TEST(Gradient, MicroBatchesAdd) {
  for (ModelFixtureOptions options : {small_gpt(false, 0.1), small_gpt(true), small_resnet()}) {
    ModelFixture fixture(options);
    fixture.gradients();
    const std::vector<float> once = flat_gradient(fixture);
    fixture.gradients(ops::Write::add);
    const std::vector<float> twice = flat_gradient(fixture);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < once.size(); ++i) {
      difference += std::pow(2.0 * once[i] - twice[i], 2);
      norm += std::pow(once[i], 2);
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(difference / norm), 1e-6);  // sums of a few terms in another order
  }
}

/// With 8 or 11 bits and a few layers, a gradient differs by about ten roundings. float16 also
/// loses numbers below its range.
void expect_near_float32(DType compute, double loss_error, double gradient_error) {
  for (ModelFixtureOptions options : {small_gpt(), small_gpt(true)}) {
    ModelFixture exact(options);
    options.compute = compute;
    ModelFixture rounded(options);
    const double loss = exact.gradients();
    EXPECT_NEAR(rounded.gradients(), loss, loss_error * loss);
    const std::vector<float> a = flat_gradient(exact), b = flat_gradient(rounded);
    for (std::size_t i = 0; i < exact.list.entries().size(); ++i) {
      const parallel::ParameterId id{static_cast<std::int32_t>(i)};
      const auto& from = exact.layout.tensor(id);
      const auto& to = rounded.layout.tensor(id);
      double difference = 0, norm = 0;
      for (std::int64_t e = 0; e < from.elements; ++e) {
        const double g = a[static_cast<std::size_t>(from.offset + e)];
        difference += std::pow(g - b[static_cast<std::size_t>(to.offset + e)], 2);
        norm += g * g;
      }
      EXPECT_LT(std::sqrt(difference), gradient_error * std::sqrt(norm) + 1e-4)
          << exact.list.entries()[i].spec.name;
    }
  }
}

TEST(Gradient, Bfloat16IsNearFloat32) { expect_near_float32(DType::bfloat16, 0.002, 0.05); }
TEST(Gradient, Float16IsNearerToIt) { expect_near_float32(DType::float16, 0.00025, 0.00625); }

}  // namespace
}  // namespace trireme::model
