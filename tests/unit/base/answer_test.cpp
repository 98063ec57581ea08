// SPDX-License-Identifier: Apache-2.0
//
// The tables of answers and of metrics agree with each other.
#include "trireme/base/answer.hpp"

#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using testing::Contains;
using testing::ElementsAre;

TEST(Answer, EachKindHasOneRow) {
  std::set<AnswerKind> kinds;
  std::set<std::string> words;
  for (const Answer& answer : answers()) {
    EXPECT_EQ(&answer_of(answer.kind), &answer);
    kinds.insert(answer.kind);
    words.insert(answer.word);
  }
  EXPECT_EQ(kinds.size(), answers().size());
  EXPECT_EQ(words.size(), answers().size());
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(AnswerKind::field) + 1);
}

TEST(Answer, MetricsAreInTheTableOfMetrics) {
  for (const Answer& answer : answers()) {
    EXPECT_FALSE(answer.metrics.empty()) << answer.word;
    for (const std::string_view metric : answer.metrics) {
      EXPECT_EQ(evaluation_metric(metric).word, metric);
      EXPECT_TRUE(answer.is_measured_by(metric));
    }
    EXPECT_TRUE(answer.is_measured_by("loss"));
    EXPECT_TRUE(answer.is_measured_by(answer.best)) << answer.word;
    EXPECT_THAT(metric_words(), Contains(answer.best));
  }
  EXPECT_FALSE(answer_of(AnswerKind::one_class).is_measured_by("perplexity"));
}

TEST(Answer, EachMetricIsMeasuredForAnAnswer) {
  for (const EvaluationMetric& metric : evaluation_metrics()) {
    bool is_measured = false;
    for (const Answer& answer : answers())
      is_measured = is_measured || answer.is_measured_by(metric.word);
    EXPECT_TRUE(is_measured) << metric.word;
  }
}

TEST(Answer, TargetsAreAllButTokens) {
  std::vector<std::string> words;
  for (const Answer& answer : target_answers()) words.emplace_back(answer.word);
  EXPECT_THAT(words, ElementsAre("class", "classes", "values", "pixels", "field"));
}

TEST(Answer, PropertiesGoTogether) {
  for (const Answer& answer : answers()) {
    EXPECT_FALSE(answer.has_units && !answer.has_float_targets) << answer.word;
    EXPECT_FALSE(answer.allows_cutmix && answer.is_map) << answer.word;
    EXPECT_TRUE(answer.hit_metric == nullptr || answer.is_measured_by(answer.hit_metric));
    EXPECT_EQ(std::string(answer.prediction).empty(), answer.is_tokens()) << answer.word;
  }
}

TEST(Answer, ValuesAreTexts) {
  EXPECT_EQ(value_text(evaluation_metric("top1"), 0.913), "91.30 %");
  EXPECT_EQ(value_text(evaluation_metric("rmse"), 0.5), "0.5");
  EXPECT_EQ(value_text(evaluation_metric("iou"), std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(quoted_metrics(answer_of(AnswerKind::pixels)), R"("loss", "iou" or "accuracy")");
}

}  // namespace
}  // namespace trireme
