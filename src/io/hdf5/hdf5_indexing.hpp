// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/resource.h>

#include "trireme/io/file.hpp"

namespace trireme::io::detail {

// The process that needs an index (hdf5_indexing.cpp) and its child processes
// (hdf5_indexing_child.cpp) agree on these constants.

// Limits of a child process. An honest file needs far less, because no large values are read.
// A file is refused if its scan used a third of the memory: a buffer that doubles its size fails
// then, and HDF5 hides a failed allocation, so that objects could be missing.
inline constexpr rlim_t max_memory_bytes = rlim_t{448} << 20, max_used_bytes = max_memory_bytes / 3;
// Processor time for one file: 4 s, and one second for each 4 MiB beyond 16 MiB.
inline constexpr std::int64_t base_seconds = 4, base_bytes = std::int64_t{16} << 20,
                              bytes_per_second = std::int64_t{4} << 20;

// The child writes records: one byte for the kind, the length as uint64, the content.
inline constexpr char object_record = 'o', end_record = '.', error_record = 'e',
                      failure_record = 'f';
// The child writes to this descriptor: libraries of a site may print to standard output.
inline constexpr int report_descriptor = 3;
inline constexpr std::size_t record_head_bytes = 9;

inline std::int64_t seconds_for(std::int64_t file_bytes) {
  return base_seconds + std::max<std::int64_t>(file_bytes - base_bytes, 0) / bytes_per_second;
}

/// Returns the size of a file. Throws InputError if it cannot be read.
inline std::int64_t size_of_file(const std::string& path) {
  return File(path, File::Mode::read).size();
}

}  // namespace trireme::io::detail
