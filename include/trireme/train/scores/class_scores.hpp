// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "trireme/train/scores/sample_result.hpp"

namespace trireme::train {

/// Numbers of samples by (true class, predicted class, which is -1 for logits that are NaN),
/// without zeros: a matrix of thousands of classes is sparse.
using Confusion = std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>;

Confusion confusion_of(std::span<const SampleResult> results);

/// The scores of one class: one against the others. A score whose denominator is 0 is NaN.
struct ClassScore {
  std::int32_t label = 0;
  std::int64_t samples = 0, predicted = 0, correct = 0;
  double recall() const;     ///< correct / samples, also called the accuracy of a class
  double precision() const;  ///< correct / predicted
  double f1() const;         ///< 2 correct / (samples + predicted)
};

/// Adds samples of class `label` that were predicted as `predicted` to the scores of classes 0, 1,
/// ... With -1 they count as samples alone.
void add_samples(std::span<ClassScore> scores, std::int32_t label, std::int32_t predicted,
                 std::int64_t samples);

/// Returns the scores of classes 0 .. classes - 1.
std::vector<ClassScore> class_scores(const Confusion& confusion, std::int64_t classes);

/// Returns the classes from the lowest recall to the highest; of equal ones the class with the
/// lower F1 first. Classes without samples are at the end.
std::vector<ClassScore> worst_first(std::vector<ClassScore> scores);

/// A pair of different classes, and how many samples of `label` were predicted as the other.
struct ConfusedPair {
  std::int32_t label = 0, predicted = 0;
  std::int64_t samples = 0;
};

/// Returns the pairs that were confused most often, at most `limit`, in decreasing order; of equal
/// ones in the order of the classes.
std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t limit);

/// The number of bins of calibration_error().
inline constexpr int calibration_bins = 15;

/// Returns the expected calibration error (Guo et al. 2017, section 2): the mean over samples of
/// |accuracy - mean probability| of their bin, with 15 bins of equal width over the probability of
/// the predicted class. Bin b holds probabilities in (b / 15, (b + 1) / 15]. NaN if a probability
/// is, or without results.
double calibration_error(std::span<const SampleResult> results);

}  // namespace trireme::train
