// SPDX-License-Identifier: Apache-2.0
//
// Results of single rows: they add up to the sums of the evaluation, without the rows of padding.
#include "trireme/train/step/evaluated_rows.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/replica.hpp"
#include "trireme/train/scores/sample_result.hpp"

namespace trireme::train {
namespace {

using testing::ElementsAreArray;

/// A replica that keeps rows, and a micro-batch whose last rows are padding.
struct RowsFixture : test::ReplicaFixture {
  static constexpr std::int64_t valid = 3;

  explicit RowsFixture(ReplicaOptions options, KeptRows kept)
      : ReplicaFixture([&] {
          options.kept_rows = kept;
          options.micro = options.global = 5;
          return options;
        }()) {
    samples = {40, 41, 42, -1, -1};
    padded = batch(0);
    padded.samples = samples.data();
    padded.valid_rows = valid;
    const auto first = labels.begin() + valid * this->options.labels_per_sample();
    std::fill(first, labels.end(), -1);
    sums = evaluate(padded);
  }

  std::vector<std::int64_t> samples;
  data::MicroBatch padded;
  Sums sums;
};

TEST(EvaluatedRows, LogitsAddUpToTheSums) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    ReplicaOptions options = test::small_resnet();
    options.compute = compute;
    RowsFixture fixture(options, KeptRows::logits);
    double loss = 0, first = 0;
    pass_rows(fixture.replica, fixture.padded, [&](const EvaluatedRows& rows) {
      EXPECT_THAT(rows.samples, ElementsAreArray({40, 41, 42}));
      ASSERT_EQ(rows.classes, 5);
      ASSERT_EQ(rows.logits.size(), 3u * 5);
      EXPECT_EQ(rows.losses.size(), 0u);
      for (std::size_t i = 0; i < rows.samples.size(); ++i) {
        const SampleResult result = result_of(0, rows.labels[i], rows.logits.subspan(5 * i, 5));
        loss += result.loss;
        first += result.label_rank == 0;
      }
    });
    EXPECT_EQ(fixture.sums.count, 3);
    // The kernel adds exponentials in float32.
    EXPECT_NEAR(loss, fixture.sums.loss, 1e-5) << to_string(compute);
    EXPECT_EQ(first, fixture.sums.top1) << to_string(compute);
  }
}

TEST(EvaluatedRows, LossesOfTokensAddUpToTheSums) {
  for (const bool fused : {false, true}) {
    ReplicaOptions options = test::small_gpt();
    options.fused_softmax = fused;
    RowsFixture fixture(options, KeptRows::losses);
    const std::size_t tokens = 3 * static_cast<std::size_t>(options.context());
    pass_rows(fixture.replica, fixture.padded, [&](const EvaluatedRows& rows) {
      ASSERT_EQ(rows.labels.size(), tokens);
      ASSERT_EQ(rows.losses.size(), tokens);
      EXPECT_EQ(rows.logits.size(), 0u);
      // Each loss is rounded to float32.
      EXPECT_NEAR(std::accumulate(rows.losses.begin(), rows.losses.end(), 0.0), fixture.sums.loss,
                  1e-6 * fixture.sums.loss);
    });
    EXPECT_EQ(fixture.sums.count, static_cast<double>(tokens));
  }
}

TEST(EvaluatedRows, MirrorImagesAreAveraged) {
  RowsFixture fixture(test::small_resnet(), KeptRows::logits);
  const auto logits = [&](std::span<const float> mirrored) {
    std::vector<float> found;
    pass_rows(
        fixture.replica, fixture.padded,
        [&](const EvaluatedRows& rows) { found.assign(rows.logits.begin(), rows.logits.end()); },
        mirrored);
    return found;
  };
  const std::vector<float> plain = logits({});
  // Mirrors every image in memory: the network must see what it sees of mirrored_logits().
  std::vector<float> mirrored = mirrored_logits(fixture.replica, fixture.padded, 0);
  const Shape& image = fixture.options.image;
  for (std::size_t row = 0; row < fixture.images.size(); row += static_cast<std::size_t>(image[1]))
    std::reverse(fixture.images.begin() + static_cast<std::ptrdiff_t>(row),
                 fixture.images.begin() + static_cast<std::ptrdiff_t>(row) + image[1]);
  fixture.evaluate(fixture.padded);
  EXPECT_THAT(logits({}), testing::Pointwise(testing::FloatNear(1e-5f),
                                             std::span(mirrored).first(plain.size())));
  EXPECT_NE(logits({}), plain);
  const std::vector<float> mean = logits(std::vector<float>(mirrored.size(), 1));
  for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_FLOAT_EQ(mean[i], (mirrored[i] + 1) / 2);
}

TEST(EvaluatedRows, MemoryIsPlanned) {
  for (const auto& [options, kept] : {std::pair(test::small_resnet(), KeptRows::logits),
                                      std::pair(test::small_gpt(), KeptRows::losses)}) {
    RowsFixture fixture(options, kept);
    EXPECT_LE(fixture.replica.peaks().batches, fixture.plan.batches);
    EXPECT_GE(fixture.plan.batches,
              static_cast<std::int64_t>(4 * fixture.replica.stage().row_values()));
  }
}

}  // namespace
}  // namespace trireme::train
