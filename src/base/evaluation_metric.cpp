// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/evaluation_metric.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme {

bool EvaluationMetric::is_measured_for(AnswerKind answer) const {
  return std::find(answers.begin(), answers.end(), answer) != answers.end();
}

std::span<const EvaluationMetric> evaluation_metrics() {
  using enum AnswerKind;
  static const EvaluationMetric all[] = {{"loss", false, {classes, tokens, values}},
                                         {"top1", true, {classes, tokens}},
                                         {"perplexity", false, {tokens}},
                                         {"rmse", false, {values}},
                                         {"mae", false, {values}},
                                         {"r2", true, {values}}};
  return all;
}

const EvaluationMetric& evaluation_metric(std::string_view word) {
  const auto all = evaluation_metrics();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const EvaluationMetric& metric) { return word == metric.word; });
  TRIREME_EXPECT(found != all.end());
  return *found;
}

std::vector<std::string> metric_words() {
  std::vector<std::string> words;
  for (const EvaluationMetric& metric : evaluation_metrics()) words.emplace_back(metric.word);
  return words;
}

std::string quoted_metrics(AnswerKind answer) {
  std::vector<std::string> words;
  for (const EvaluationMetric& metric : evaluation_metrics())
    if (metric.is_measured_for(answer)) words.push_back(fmt::format("\"{}\"", metric.word));
  return join_with_or(words);
}

}  // namespace trireme
