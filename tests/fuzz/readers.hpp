// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::fuzz {

/// A reader of untrusted files, as the fuzzing programs call it.
struct Reader {
  const char* name;
  /// Reads one file, given as its bytes, and uses what it describes. Returns whether it is a file
  /// of the format. Throws InputError if it is refused; every other exception is a bug.
  bool (*read)(const std::string& bytes);
  /// Returns small valid files.
  std::vector<std::string> (*seeds)();
  /// Corrects the checksums of a changed file, so that the code behind them is reached; may be
  /// null.
  void (*repair)(std::string& bytes);
};

/// Returns all readers.
std::span<const Reader> all_readers();

/// Returns a reader by its name; null if there is none.
const Reader* find_reader(std::string_view name);

/// The most that reading one file may cost.
inline constexpr double max_seconds = 4;
inline constexpr std::int64_t max_megabytes = 512;

/// Calls reader.read(). Returns "" if the file was accepted, else why it was refused.
///
/// Throws std::runtime_error if the file took more than `max_seconds` of processor time, or this
/// process has used more than `max_megabytes` of memory since its start. Throws what reader.read()
/// throws. After 5 x `max_seconds` the process gets SIGPROF, which ends it.
std::string read_within_limits(const Reader& reader, const std::string& bytes);

}  // namespace trireme::fuzz
