// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/scores/prediction_rows.hpp"

#include <cmath>

#include "trireme/train/scores/sample_result.hpp"

namespace trireme::train {
namespace {

/// Appends one class of a sample.
void append_class(PredictionRows& to, std::int32_t label, std::span<const float> logits,
                  const PredictionOptions& options) {
  if (options.targets) {
    const SampleResult result = result_of(0, label, logits);
    to.label.push_back(label);
    to.predicted.push_back(result.predicted);
    to.loss.push_back(static_cast<float>(result.loss));
  } else {
    to.predicted.push_back(predicted_class(logits));
  }
  const std::vector<double> probabilities = probabilities_of(logits);
  for (const std::int32_t c : top_classes(logits, static_cast<std::size_t>(options.top))) {
    to.top_class.push_back(c);
    to.top_probability.push_back(static_cast<float>(probabilities[static_cast<std::size_t>(c)]));
  }
  if (options.logits) to.logits.insert(to.logits.end(), logits.begin(), logits.end());
}

void append_pixels(PredictionRows& to, const EvaluatedRows& rows,
                   const PredictionOptions& options) {
  const auto classes = static_cast<std::size_t>(rows.classes);
  for (std::size_t i = 0; i < rows.labels.size(); ++i)
    to.predicted.push_back(predicted_class(rows.logits.subspan(i * classes, classes)));
  if (options.targets) to.label.insert(to.label.end(), rows.labels.begin(), rows.labels.end());
}

/// Appends vectors or fields, in units of the data.
template <class Number>
void append_numbers(const EvaluatedRows& rows, const PredictionOptions& options,
                    const data::TargetOptions& target, std::vector<Number>& predictions,
                    std::vector<Number>& targets) {
  const auto parts = static_cast<std::size_t>(rows.classes);
  for (std::size_t i = 0; i < rows.logits.size(); ++i) {
    const double mean = target.mean_of(i % parts), std = target.std_of(i % parts),
                 output = rows.logits[i] * std + mean;
    predictions.push_back(static_cast<Number>(
        target.kind == AnswerKind::classes ? 1 / (1 + std::exp(-output)) : output));
    if (options.targets) targets.push_back(static_cast<Number>(rows.numbers[i] * std + mean));
  }
}

}  // namespace

void append(PredictionRows& to, const EvaluatedRows& rows, const PredictionOptions& options,
            const data::TargetOptions& target) {
  to.index.insert(to.index.end(), rows.samples.begin(), rows.samples.end());
  to.loss.insert(to.loss.end(), rows.losses.begin(), rows.losses.end());
  if (rows.logits.empty()) return;
  const Answer& answer = target.answer();
  if (answer.is_map && answer.has_float_targets)
    append_numbers(rows, options, target, to.field, to.field_target);
  else if (answer.is_map)
    append_pixels(to, rows, options);
  else if (answer.has_float_targets)
    append_numbers(rows, options, target, to.prediction, to.target);
  else
    for (std::size_t i = 0, classes = static_cast<std::size_t>(rows.classes);
         i < rows.samples.size(); ++i)
      append_class(to, rows.labels[i], rows.logits.subspan(i * classes, classes), options);
}

std::int64_t bytes_of(const PredictionRows& rows) {
  const auto sum = [](const auto&... lists) {
    return (std::ssize(std::as_bytes(std::span(lists))) + ...);
  };
  return sum(rows.index, rows.label, rows.predicted, rows.loss, rows.top_class,
             rows.top_probability, rows.logits, rows.prediction, rows.target, rows.field,
             rows.field_target);
}

std::vector<std::pair<std::int64_t, std::int64_t>> runs_of(std::span<const std::int64_t> numbers) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (const std::int64_t number : numbers) {
    if (!runs.empty() && number == runs.back().first + runs.back().second)
      ++runs.back().second;
    else
      runs.emplace_back(number, 1);
  }
  return runs;
}

}  // namespace trireme::train
