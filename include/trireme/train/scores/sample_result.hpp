// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {

/// The result of one image.
struct SampleResult {
  std::int64_t sample = -1;  ///< its index in the dataset
  std::int32_t label = 0;
  std::int32_t predicted = 0;  ///< as predicted_class()
  /// Classes that are ranked before the label: those with a greater logit, or with an equal one and
  /// a lower number. NaN counts as before.
  std::int64_t label_rank = 0;
  double loss = 0;         ///< plain cross-entropy
  double probability = 0;  ///< of the predicted class
};

/// Returns the result of a sample from its logits. Computes in double precision.
SampleResult result_of(std::int64_t sample, std::int32_t label, std::span<const float> logits);

/// Returns the metrics of these samples, added in their order.
Metrics metrics_of(std::span<const SampleResult> results);

/// Returns the `count` samples with the largest losses, in decreasing order; of equal ones the
/// lower number first. NaN is as large as infinity.
std::vector<SampleResult> largest_losses(std::span<const SampleResult> results, std::size_t count);

/// Returns the `count` classes with the greatest logits, in decreasing order; of equal ones the
/// lower number first. NaN is less than all numbers.
std::vector<std::int32_t> top_classes(std::span<const float> logits, std::size_t count);

/// Returns the class with the greatest logit, of equal ones the lowest; -1 if a logit is NaN.
std::int32_t predicted_class(std::span<const float> logits);

/// Returns softmax(logits), computed in double precision.
std::vector<double> probabilities_of(std::span<const float> logits);

/// Returns the results of all ranks in the order of the samples, on every rank. Collective.
std::vector<SampleResult> gather_results(const comm::Communicator& world,
                                         std::span<const SampleResult> mine);

}  // namespace trireme::train
