// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/base/answer.hpp"

namespace trireme::data {

/// Table [target] of the deck.
struct TargetOptions {
  AnswerKind kind = AnswerKind::one_class;
  std::int64_t classes = 0;           ///< pixels: their number
  std::optional<double> ignore = {};  ///< maps: marks pixels that do not count
  /// normalize = { mean, std } of values or components, one for each or one for all; empty: 0 and 1
  std::vector<double> mean = {}, std = {};
  const Answer& answer() const { return answer_of(kind); }
  /// Returns mean and standard deviation of value `i`, in units of the data.
  double mean_of(std::size_t i) const { return mean.empty() ? 0 : mean[mean.size() == 1 ? 0 : i]; }
  double std_of(std::size_t i) const { return std.empty() ? 1 : std[std.size() == 1 ? 0 : i]; }
};

/// Throws InputError if `normalize` has neither one number for all nor one for each of the values
/// in the target of a sample.
void check_target_size(const TargetOptions& target, std::int64_t values);

}  // namespace trireme::data
