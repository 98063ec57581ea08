// SPDX-License-Identifier: Apache-2.0
//
// Scores of answers that are computed on the host: hand calculations, missing targets, and outputs
// that are NaN.
#include "trireme/train/scores/scores.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::train {
namespace {

using testing::DoubleEq;
using testing::Each;
using testing::ElementsAre;
using testing::IsNan;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Returns the scores of one micro-batch of vectors.
Scores scores_of(const data::TargetOptions& target, std::int64_t outputs,
                 const std::vector<float>& logits, const std::vector<float>& vectors) {
  const std::vector<std::int64_t> samples(vectors.size() / static_cast<std::size_t>(outputs));
  const std::unique_ptr<Scorer> scorer = make_scorer(target, outputs);
  scorer->add({.samples = samples,
               .labels = {},
               .numbers = vectors,
               .classes = outputs,
               .logits = logits,
               .losses = {}});
  return scorer->gather(comm::Communicator());
}

/// Returns the scores of the pixels of one sample.
Scores scores_of_pixels(std::int64_t classes, const std::vector<float>& logits,
                        const std::vector<std::int32_t>& labels) {
  const std::vector<std::int64_t> samples(1);
  const std::unique_ptr<Scorer> scorer = make_scorer({.kind = AnswerKind::pixels}, classes);
  scorer->add(
      {.samples = samples, .labels = labels, .classes = classes, .logits = logits, .losses = {}});
  return scorer->gather(comm::Communicator());
}

TEST(Scores, HaveTheMetricsOfTheirAnswerInItsOrder) {
  for (const Answer& answer : answers()) {
    if (!answer.is_scored()) continue;
    const Scores scores = make_scorer({.kind = answer.kind}, 3)->gather(comm::Communicator());
    EXPECT_EQ(scores.answer, &answer);
    EXPECT_EQ(scores.all.size(), answer.metrics.size());
    ASSERT_EQ(scores.each.size(), 3u);
    for (const auto& part : scores.each) EXPECT_EQ(part.size(), answer.metrics.size());
    EXPECT_THAT(scores.all, Each(IsNan())) << "without samples";
  }
}

TEST(Scores, ClassSetsHaveMeansOfTheClassesThatAreDefined) {
  // Class 0: one hit of two predictions; class 1: missed once; class 2: neither there nor
  // predicted.
  const Scores scores =
      scores_of({.kind = AnswerKind::classes}, 3, {1, -1, -1, 1, -1, -1}, {1, 0, 0, 0, 1, 0});
  EXPECT_THAT(scores.values_of("f1"), ElementsAre(DoubleEq(2.0 / 3), 0, IsNan()));
  EXPECT_THAT(scores.values_of("precision"), ElementsAre(0.5, IsNan(), IsNan()));
  EXPECT_THAT(scores.values_of("recall"), ElementsAre(1, 0, IsNan()));
  EXPECT_DOUBLE_EQ(scores.value_of("f1"), 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores.value_of("precision"), 0.5);
}

TEST(Scores, AClassSetWithAnOutputThatIsNanHasNoScores) {
  // Without class 0 the mean F1 would be 1.
  const Scores scores = scores_of({.kind = AnswerKind::classes}, 2, {nan, 1}, {1, 1});
  EXPECT_THAT(scores.each, ElementsAre(Each(IsNan()), Each(1.0)));
  EXPECT_THAT(scores.all, Each(IsNan()));
}

TEST(Scores, APixelWithAnOutputThatIsNanIsWrong) {
  // Classes 0, 0, 1, 1 and a pixel that is ignored; right, NaN, right, wrong.
  const Scores scores = scores_of_pixels(2, {1, 0, nan, 0, 0, 1, 1, 0, nan, nan}, {0, 0, 1, 1, -1});
  EXPECT_THAT(scores.values_of("iou"), ElementsAre(DoubleEq(1.0 / 3), 0.5));
  EXPECT_THAT(scores.values_of("accuracy"), ElementsAre(0.5, 0.5));
  EXPECT_DOUBLE_EQ(scores.value_of("iou"), (1.0 / 3 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(scores.value_of("accuracy"), 0.5);
  const Scores broken = scores_of_pixels(2, {nan, 0, 0, nan}, {0, 1});
  EXPECT_THAT(broken.all, ElementsAre(0, 0));
}

TEST(Scores, ValuesAreInUnitsOfTheData) {
  const data::TargetOptions target{.kind = AnswerKind::values, .mean = {10, 0}, .std = {2, 1}};
  const Scores scores = scores_of(target, 2, {0, 1, 1, 1}, {1, 1, -1, 3});
  // Targets 12 and 8, outputs 10 and 12; 1 and 3, outputs 1 and 1.
  EXPECT_THAT(scores.values_of("rmse"),
              ElementsAre(DoubleEq(std::sqrt(10.0)), DoubleEq(std::sqrt(2.0))));
  EXPECT_THAT(scores.values_of("mae"), ElementsAre(3, 1));
  EXPECT_THAT(scores.values_of("r2"), ElementsAre(DoubleEq(1 - 20.0 / 8), DoubleEq(1 - 4.0 / 2)));
  EXPECT_DOUBLE_EQ(scores.value_of("rmse"), std::sqrt(6.0));
}

TEST(Scores, NumbersThatAreMissingDoNotCount) {
  // Component 1 has no target at all.
  const Scores scores =
      scores_of({.kind = AnswerKind::field}, 2, {1, nan, 5, 7, 0, 7}, {2, nan, nan, nan, 3, nan});
  EXPECT_THAT(scores.values_of("mae"), ElementsAre(2, IsNan()));
  EXPECT_DOUBLE_EQ(scores.value_of("mae"), 2);
  EXPECT_DOUBLE_EQ(scores.value_of("rmse"), std::sqrt(5.0));
}

TEST(Scores, ValuesWithAnOutputThatIsNanHaveNoScores) {
  const Scores scores = scores_of({.kind = AnswerKind::values}, 2, {nan, 1, 0, 1}, {1, 1, 2, 3});
  EXPECT_THAT(scores.all, Each(IsNan()));
  EXPECT_DOUBLE_EQ(scores.values_of("mae")[1], 1);
}

}  // namespace
}  // namespace trireme::train
