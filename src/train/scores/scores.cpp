// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/scores/scores.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "scorers.hpp"
#include "trireme/base/check.hpp"

namespace trireme::train {

std::size_t Scores::index_of(std::string_view metric) const {
  const auto& words = answer->metrics;
  const auto found = std::find(words.begin(), words.end(), metric);
  TRIREME_EXPECT(found != words.end());
  return static_cast<std::size_t>(found - words.begin());
}

double Scores::value_of(std::string_view metric) const { return all[index_of(metric)]; }

std::vector<double> Scores::values_of(std::string_view metric) const {
  std::vector<double> values;
  for (const std::vector<double>& part : each) values.push_back(part[index_of(metric)]);
  return values;
}

std::string describe(const Answer& answer, const std::vector<double>& values) {
  TRIREME_EXPECT(values.size() == answer.metrics.size());
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const EvaluationMetric& metric = evaluation_metric(answer.metrics[i]);
    texts.push_back(fmt::format("{} {}", metric.label, value_text(metric, values[i])));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

double mean_of_defined(const std::vector<std::vector<double>>& each, std::size_t metric) {
  double sum = 0, count = 0;
  for (const std::vector<double>& scores : each) {
    if (!std::isfinite(scores[metric])) continue;
    sum += scores[metric];
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

std::unique_ptr<Scorer> make_scorer(const data::TargetOptions& target, std::int64_t outputs) {
  TRIREME_EXPECT(target.answer().is_scored());
  switch (target.kind) {
    case AnswerKind::classes: return score_class_sets(outputs);
    case AnswerKind::pixels: return score_pixels(outputs);
    default: return score_values(target, outputs);
  }
}

}  // namespace trireme::train
