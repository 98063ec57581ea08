// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/train/step/evaluated_rows.hpp"

namespace trireme::train {

/// The attribute `format` of a file of predictions.
inline constexpr const char* predictions_format = "trireme-predictions";

/// The values that are kept of each sample with one class besides its label, its predicted class
/// and its loss.
struct PredictionOptions {
  std::int64_t top = 5;  ///< the most probable classes; at most the number of classes
  bool logits = false;
  /// The targets of any answer are known, and kept.
  bool targets = true;
};

/// The samples that one rank has evaluated, in the order of their evaluation.
struct PredictionRows {
  std::vector<std::int64_t> index;  ///< of the sample in the dataset
  /// One class: [samples]; pixels: [samples, height, width], where the label -1 is ignored.
  std::vector<std::int32_t> label, predicted;
  std::vector<float> loss;              ///< one class: of the sample; text: of each token
  std::vector<std::int32_t> top_class;  ///< one class: [samples, top]
  std::vector<float> top_probability;   ///< one class: [samples, top]
  std::vector<float> logits;            ///< one class: [samples, classes], with options.logits
  /// Vectors [samples, parts]: values of the model in units of the data, or probabilities of
  /// classes; and the targets.
  std::vector<double> prediction, target;
  /// Fields [samples, height, width, components], in units of the data; NaN: missing.
  std::vector<float> field, field_target;
};

/// Appends the results of a micro-batch. `target`: the form of the targets.
void append(PredictionRows& to, const EvaluatedRows& rows, const PredictionOptions& options,
            const data::TargetOptions& target = {});

/// Returns the bytes of all lists.
std::int64_t bytes_of(const PredictionRows& rows);

/// Returns the runs of consecutive numbers as pairs of their first number and their length.
std::vector<std::pair<std::int64_t, std::int64_t>> runs_of(std::span<const std::int64_t> numbers);

}  // namespace trireme::train
