// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// Numbers of a model beside those of the data, from a file of `evaluate --predictions` about
/// values or fields. In units of the data.
struct ComparedValues {
  struct Pair {
    double target, value;
  };
  std::string file;          ///< its name in the run folder
  std::string split;         ///< printable
  std::int64_t parts = 0;    ///< values of a sample, or components of a field
  std::int64_t numbers = 0;  ///< of each part: samples, or pixels of all of them
  /// The pairs of the first max_compared_parts parts, without targets that are missing and values
  /// that are not finite.
  std::vector<std::vector<Pair>> pairs;
};
inline constexpr std::int64_t max_compared_parts = 12;

/// Reads at most `max_pairs` pairs of each part, from places that are spread evenly over the
/// samples. Returns none for an HDF5 file without such predictions. Throws InputError if it cannot
/// be read.
std::optional<ComparedValues> read_compared(const std::string& path, std::int64_t max_pairs);

}  // namespace trireme::report
