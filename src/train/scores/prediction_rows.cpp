// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/scores/prediction_rows.hpp"

#include <cmath>

#include "trireme/train/scores/sample_result.hpp"

namespace trireme::train {
namespace {

void append_image(PredictionRows& to, std::int32_t label, std::span<const float> logits,
                  const PredictionOptions& options) {
  to.predicted.push_back(predicted_class(logits));
  if (label >= 0) {
    to.label.push_back(label);
    to.loss.push_back(static_cast<float>(result_of(0, label, logits).loss));
  }
  const std::vector<double> probabilities = probabilities_of(logits);
  for (const std::int32_t c : top_classes(logits, static_cast<std::size_t>(options.top))) {
    to.top_class.push_back(c);
    to.top_probability.push_back(static_cast<float>(probabilities[static_cast<std::size_t>(c)]));
  }
  if (options.logits) to.logits.insert(to.logits.end(), logits.begin(), logits.end());
}

}  // namespace

void append(PredictionRows& to, const EvaluatedRows& rows, const PredictionOptions& options,
            const data::TargetOptions& target) {
  to.index.insert(to.index.end(), rows.samples.begin(), rows.samples.end());
  to.loss.insert(to.loss.end(), rows.losses.begin(), rows.losses.end());
  if (rows.logits.empty()) return;
  const auto classes = static_cast<std::size_t>(rows.classes);
  for (std::size_t i = 0; i < rows.vectors.size(); ++i) {
    const double mean = target.mean_of(i % classes), std = target.std_of(i % classes),
                 output = rows.logits[i] * std + mean;
    to.prediction.push_back(target.kind == AnswerKind::classes ? 1 / (1 + std::exp(-output))
                                                               : output);
    to.target.push_back(rows.vectors[i] * std + mean);
  }
  if (!rows.vectors.empty()) return;
  for (std::size_t i = 0; i < rows.samples.size(); ++i)
    append_image(to, rows.labels[i], rows.logits.subspan(i * classes, classes), options);
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
