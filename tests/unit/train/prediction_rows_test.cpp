// SPDX-License-Identifier: Apache-2.0
//
// Predictions that are kept of micro-batches, for each form of answers.
#include "trireme/train/scores/prediction_rows.hpp"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(PredictionRows, ImagesAreAppendedWithTheirTopClasses) {
  const std::vector<std::int64_t> samples{8, 9};
  const std::vector<std::int32_t> labels{1, 0};
  const float two = std::log(2.0f), five = std::log(5.0f);
  const std::vector<float> logits{0, two, five, five, two, 0};
  const EvaluatedRows rows{
      .samples = samples, .labels = labels, .classes = 3, .logits = logits, .losses = {}};
  PredictionRows to;
  append(to, rows, {.top = 2});
  append(to, rows, {.top = 2});
  EXPECT_THAT(to.index, ElementsAre(8, 9, 8, 9));
  EXPECT_THAT(to.predicted, ElementsAre(2, 0, 2, 0));
  EXPECT_THAT(to.top_class, ElementsAre(2, 1, 0, 1, 2, 1, 0, 1));
  EXPECT_NEAR(to.loss[0], std::log(4), 1e-6);
  EXPECT_NEAR(to.loss[1], std::log(1.6), 1e-6);
  EXPECT_NEAR(to.top_probability[1], 0.25, 1e-6);
  EXPECT_THAT(to.logits, IsEmpty());
  append(to, rows, {.top = 9, .logits = true});
  EXPECT_EQ(to.top_class.size(), 8u + 6);
  EXPECT_EQ(to.logits, logits);
}

TEST(PredictionRows, TokensHaveTheirLossAlone) {
  const std::vector<std::int64_t> samples{4};
  const std::vector<float> losses{1.5f, 2.5f};
  const std::vector<std::int32_t> labels{7, 7};
  PredictionRows to;
  append(to, {.samples = samples, .labels = labels, .classes = 9, .logits = {}, .losses = losses},
         {});
  EXPECT_THAT(to.index, ElementsAre(4));
  EXPECT_EQ(to.loss, losses);
  EXPECT_THAT(to.label, IsEmpty());
}

TEST(PredictionRows, UnknownTargetsAreNotKept) {
  const std::vector<std::int64_t> samples{0, 1};
  const std::vector<std::int32_t> labels{-1, -1};
  const std::vector<float> logits{0, 1, 2, 1};
  PredictionRows to;
  append(to, {.samples = samples, .labels = labels, .classes = 2, .logits = logits, .losses = {}},
         {.top = 1, .targets = false});
  EXPECT_THAT(to.predicted, ElementsAre(1, 0));
  EXPECT_THAT(to.label, IsEmpty());
  EXPECT_THAT(to.loss, IsEmpty());
  const data::TargetOptions values{.kind = AnswerKind::values, .mean = {10}, .std = {2}};
  append(to,
         {.samples = samples,
          .labels = {},
          .numbers = logits,
          .classes = 2,
          .logits = logits,
          .losses = {}},
         {.targets = false}, values);
  EXPECT_THAT(to.prediction, ElementsAre(10, 12, 14, 12));
  EXPECT_THAT(to.target, IsEmpty());
}

TEST(PredictionRows, PixelsHaveAClassEach) {
  const std::vector<std::int64_t> samples{3};
  const std::vector<std::int32_t> labels{1, -1, 0};
  const float nan = std::nanf("");
  const std::vector<float> logits{0, 1, 2, 1, nan, 0};
  PredictionRows to;
  append(to, {.samples = samples, .labels = labels, .classes = 2, .logits = logits, .losses = {}},
         {}, {.kind = AnswerKind::pixels});
  EXPECT_THAT(to.index, ElementsAre(3));
  EXPECT_THAT(to.predicted, ElementsAre(1, 0, -1));
  EXPECT_EQ(to.label, labels);
  EXPECT_THAT(to.top_class, IsEmpty());
}

TEST(PredictionRows, FieldsAreInUnitsOfTheData) {
  const std::vector<std::int64_t> samples{3};
  const std::vector<float> outputs{0, 1, 2, 3}, targets{1, std::nanf(""), 0, 0};
  PredictionRows to;
  append(to,
         {.samples = samples,
          .labels = {},
          .numbers = targets,
          .classes = 2,
          .logits = outputs,
          .losses = {}},
         {}, {.kind = AnswerKind::field, .mean = {10, 0}, .std = {2, 1}});
  EXPECT_THAT(to.field, ElementsAre(10, 1, 14, 3));
  EXPECT_THAT(to.field_target, ElementsAre(12, testing::IsNan(), 10, 0));
  EXPECT_THAT(to.prediction, IsEmpty());
}

TEST(PredictionRows, RunsAreConsecutive) {
  EXPECT_THAT(runs_of(std::vector<std::int64_t>{0, 1, 2, 6, 7, 12}),
              ElementsAre(Pair(0, 3), Pair(6, 2), Pair(12, 1)));
  EXPECT_THAT(runs_of({}), IsEmpty());
}

}  // namespace
}  // namespace trireme::train
