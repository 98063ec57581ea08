// SPDX-License-Identifier: Apache-2.0
//
// Scores of single samples and of classes: ties go to the lowest class, undefined scores are NaN,
// and the calibration error is that of a hand calculation.
#include "trireme/train/scores/class_scores.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/train/scores/class_counts.hpp"

namespace trireme::train {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsNan;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Returns results with these labels and predicted classes.
std::vector<SampleResult> results_of(
    std::initializer_list<std::pair<std::int32_t, std::int32_t>> pairs) {
  std::vector<SampleResult> results;
  for (const auto& [label, predicted] : pairs)
    results.push_back({.sample = std::ssize(results), .label = label, .predicted = predicted});
  return results;
}

TEST(SampleResult, EqualLogitsAreOrderedByClass) {
  const std::vector<float> logits{1, 3, 2, 3, 2};
  EXPECT_THAT(top_classes(logits, 4), ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(top_classes(logits, 9), ElementsAre(1, 3, 2, 4, 0));
  EXPECT_EQ(result_of(0, 3, logits).predicted, 1);
  EXPECT_EQ(result_of(0, 1, logits).label_rank, 0);
  EXPECT_EQ(result_of(0, 3, logits).label_rank, 1);
  EXPECT_EQ(result_of(0, 4, logits).label_rank, 3);
}

TEST(SampleResult, LossAndProbabilityAreThoseOfSoftmax) {
  // exp(logit) is 1, 2 and 5: large logits must not overflow.
  const float shift = 300;
  const std::vector<float> logits{shift, shift + std::log(2.0f), shift + std::log(5.0f)};
  const SampleResult result = result_of(7, 1, logits);
  EXPECT_EQ(result.sample, 7);
  EXPECT_EQ(result.predicted, 2);
  // Logits near 300 have a spacing of 3e-5.
  EXPECT_NEAR(result.loss, std::log(8.0 / 2), 1e-4);
  EXPECT_NEAR(result.probability, 5.0 / 8, 1e-4);
  EXPECT_THAT(probabilities_of(logits), ElementsAre(DoubleNear(0.125, 1e-4), DoubleNear(0.25, 1e-4),
                                                    DoubleNear(0.625, 1e-4)));
}

TEST(SampleResult, WithNanThereIsNoPredictedClass) {
  EXPECT_EQ(result_of(0, 0, std::vector<float>{nan, 1, 2}).predicted, -1);
  const SampleResult all = result_of(0, 1, std::vector<float>{nan, nan, nan});
  EXPECT_EQ(all.predicted, -1);
  EXPECT_EQ(all.label_rank, 3);
  EXPECT_THAT(all.loss, IsNan());
  EXPECT_THAT(calibration_error(std::vector{all}), IsNan());
}

TEST(SampleResult, MetricsAreMeans) {
  std::vector<SampleResult> results = results_of({{0, 0}, {0, 1}, {0, 1}, {0, 1}});
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].label_rank = std::array{0, 4, 5, 1}[i];
    results[i].loss = static_cast<double>(i);
  }
  const Metrics metrics = metrics_of(results);
  EXPECT_EQ(metrics.loss, 1.5);
  EXPECT_EQ(metrics.top1, 0.25);
  EXPECT_EQ(metrics.top5, 0.75);
  EXPECT_EQ(metrics.num_labels, 4);
}

TEST(SampleResult, LargestLossesAreFirst) {
  std::vector<SampleResult> results = results_of({{0, 0}, {0, 0}, {0, 0}, {0, 0}});
  for (std::size_t i = 0; i < results.size(); ++i)
    results[i].loss = std::array<double, 4>{1, 3, nan, 3}[i];
  std::vector<std::int64_t> order;
  for (const SampleResult& result : largest_losses(results, 3)) order.push_back(result.sample);
  EXPECT_THAT(order, ElementsAre(2, 1, 3));
  EXPECT_EQ(largest_losses(results, 9).size(), 4u);
}

TEST(ClassScores, AreThoseOfTheMatrix) {
  // Class 0: 2 of 3 samples; class 1 took one sample of class 0; class 2 has no sample and is never
  // predicted.
  const Confusion confusion = confusion_of(results_of({{0, 0}, {0, 0}, {0, 1}, {1, 1}}));
  const std::vector<ClassScore> scores = class_scores(confusion, 3);
  EXPECT_DOUBLE_EQ(scores[0].recall(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(scores[0].precision(), 1);
  EXPECT_DOUBLE_EQ(scores[0].f1(), 0.8);
  EXPECT_DOUBLE_EQ(scores[1].recall(), 1);
  EXPECT_DOUBLE_EQ(scores[1].precision(), 0.5);
  EXPECT_DOUBLE_EQ(scores[1].f1(), 2.0 / 3);
  EXPECT_THAT(scores[2].recall(), IsNan());
  EXPECT_THAT(scores[2].precision(), IsNan());
  EXPECT_THAT(scores[2].f1(), IsNan());
}

TEST(ClassScores, WorstClassesAreFirstAndEmptyOnesLast) {
  const Confusion confusion =
      confusion_of(results_of({{1, 1}, {1, 2}, {2, 2}, {3, 2}, {4, 4}, {4, 2}, {4, 4}}));
  std::vector<std::int32_t> order;
  for (const ClassScore& score : worst_first(class_scores(confusion, 5)))
    order.push_back(score.label);
  EXPECT_THAT(order, ElementsAre(3, 1, 4, 2, 0));
}

TEST(ClassScores, MostConfusedPairsAreFirst) {
  const Confusion confusion = confusion_of(
      results_of({{0, 0}, {0, 0}, {0, 0}, {2, 1}, {0, 1}, {1, 0}, {2, 1}, {1, 1}, {2, 0}}));
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const ConfusedPair& pair : most_confused(confusion, 3))
    pairs.emplace_back(pair.label, pair.predicted);
  EXPECT_THAT(pairs, ElementsAre(std::pair(2, 1), std::pair(0, 1), std::pair(1, 0)));
  EXPECT_EQ(most_confused(confusion, 9).size(), 4u);
}

TEST(CalibrationError, BinsAreClosedAbove) {
  // Bins (2/15, 3/15], (3/15, 4/15] and (14/15, 1].
  std::vector<SampleResult> results = results_of({{0, 0}, {0, 1}, {0, 1}, {0, 0}});
  results[0].probability = 0.2;
  results[1].probability = 0.15;
  results[2].probability = 0.25;
  results[3].probability = 1;
  EXPECT_NEAR(calibration_error(results), ((1 - 0.35) + 0.25 + 0) / 4, 1e-12);
  EXPECT_THAT(calibration_error({}), IsNan());
}

TEST(ClassCounts, AreThoseOfTheConfusion) {
  // Three classes; the last sample is a tie, which the lower class wins.
  const std::vector<float> logits{2, 1, 0, 0, 1, 2, 5, 1, 1, 3, 3, 0};
  const std::vector<std::int32_t> labels{0, 2, 1, 1};
  const std::vector<std::int64_t> samples{0, 1, 2, 3};
  ClassCounts counts(3);
  counts.add({.samples = samples, .labels = labels, .classes = 3, .logits = logits, .losses = {}});
  const std::vector<ClassScore> found = counts.gather(comm::Communicator()),
                                expected = class_scores(
                                    confusion_of(results_of({{0, 0}, {2, 2}, {1, 0}, {1, 0}})), 3);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].label, expected[i].label);
    EXPECT_EQ(found[i].samples, expected[i].samples);
    EXPECT_EQ(found[i].predicted, expected[i].predicted);
    EXPECT_EQ(found[i].correct, expected[i].correct);
  }
}

TEST(ClassCounts, NanCountsAsASampleAlone) {
  const std::vector<float> logits{nan, nan, 0, 1};
  const std::vector<std::int32_t> labels{0, 0};
  const std::vector<std::int64_t> samples{0, 1};
  ClassCounts counts(2);
  counts.add({.samples = samples, .labels = labels, .classes = 2, .logits = logits, .losses = {}});
  for (const std::vector<ClassScore>& scores :
       {counts.gather(comm::Communicator()),
        class_scores(confusion_of(results_of({{0, -1}, {0, 1}})), 2)}) {
    EXPECT_EQ(scores[0].samples, 2);
    EXPECT_EQ(scores[0].predicted, 0);
    EXPECT_EQ(scores[0].correct, 0);
    EXPECT_EQ(scores[1].predicted, 1);
  }
  EXPECT_THAT(most_confused(confusion_of(results_of({{0, -1}, {0, 1}})), 9), testing::SizeIs(1));
}

TEST(ClassCounts, WorstClassesAreNamedWithTheirSamplesWhereTheseChange) {
  const std::vector<ClassScore> scores{{.label = 0, .samples = 4, .correct = 4},
                                       {.label = 1, .samples = 4, .correct = 1},
                                       {.label = 2},
                                       {.label = 3, .samples = 1, .correct = 0}};
  const std::vector<std::string> names{"ape", "bee", "cow", "d\nog"};
  EXPECT_EQ(describe_worst(scores, names, 10),
            "d\\x0Aog 0.00 % of 1 sample, bee 25.00 % of 4 samples, ape 100.00 %");
  EXPECT_EQ(describe_worst(scores, names, 1), "d\\x0Aog 0.00 % of 1 sample");
}

}  // namespace
}  // namespace trireme::train
