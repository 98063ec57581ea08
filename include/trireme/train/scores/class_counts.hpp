// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/train/scores/class_scores.hpp"

namespace trireme::train {

/// Counts, for each class, its samples, the samples predicted as it, and both at once, on each rank
/// for the samples that it evaluates.
class ClassCounts {
 public:
  explicit ClassCounts(std::int64_t classes);
  /// Adds the samples of a micro-batch of images.
  void add(const EvaluatedRows& rows);
  /// Returns the scores of classes 0 .. classes - 1 over all ranks. Collective.
  std::vector<ClassScore> gather(const comm::Communicator& world) const;

 private:
  std::vector<ClassScore> scores_;
};

/// Returns the classes with the lowest accuracy, the worst first, at most `limit` of those with
/// samples, as in "Shirt 71.20 % of 1000 samples, Pullover 83.10 %". The number of samples is named
/// where it is not that of the class before. `names`: one for each class.
std::string describe_worst(const std::vector<ClassScore>& scores,
                           const std::vector<std::string>& names, std::size_t limit);

}  // namespace trireme::train
