// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::data {

/// What the model answers for a sample that is no text.
enum class TargetKind : std::uint8_t {
  label,  ///< one class, int32
  values  ///< a vector of float32
};

/// Table [target] of the deck.
struct TargetOptions {
  TargetKind kind = TargetKind::label;
  /// normalize = { mean, std } of values, one for each or one for all; empty: 0 and 1
  std::vector<double> mean, std;
  bool has_values() const { return kind == TargetKind::values; }
  /// Returns mean and standard deviation of value `i`, in units of the data.
  double mean_of(std::size_t i) const { return mean.empty() ? 0 : mean[mean.size() == 1 ? 0 : i]; }
  double std_of(std::size_t i) const { return std.empty() ? 1 : std[std.size() == 1 ? 0 : i]; }
};

/// Throws InputError if `normalize` has neither one number for all nor one for each of the values
/// in the target of a sample.
void check_value_count(const TargetOptions& target, std::int64_t values);

}  // namespace trireme::data
