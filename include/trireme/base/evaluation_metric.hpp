// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// What a model answers for each sample.
enum class AnswerKind : std::uint8_t {
  classes,  ///< one class
  tokens,   ///< the token after each of the sample
  values    ///< a vector of numbers
};

/// A metric of an evaluation, which keys such as checkpoint.best name.
struct EvaluationMetric {
  const char* word;  ///< also the key in rows of kind "evaluate"
  bool is_better_if_higher;
  std::vector<AnswerKind> answers;  ///< for which it is measured
  bool is_measured_for(AnswerKind answer) const;
};

/// Returns all metrics.
std::span<const EvaluationMetric> evaluation_metrics();
/// Returns a metric by its word; there must be one.
const EvaluationMetric& evaluation_metric(std::string_view word);
/// Returns the words of all metrics.
std::vector<std::string> metric_words();
/// Returns the words of the metrics for an answer, as in "loss" or "top1".
std::string quoted_metrics(AnswerKind answer);

}  // namespace trireme
