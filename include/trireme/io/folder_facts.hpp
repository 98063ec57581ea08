// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Facts about a folder that a training run writes to. `trireme doctor` reports them.

namespace trireme::io {

/// A folder and its file system, as one node sees them. An empty error means that the operation
/// works.
struct FolderFacts {
  std::string path;         ///< absolute
  std::string error;        ///< why the folder could not be examined; then nothing else is known
  bool is_missing = false;  ///< there is no folder of this name
  std::string file_system;  ///< "ext4", "lustre" ..., or the number that statfs() returns, "0x1234"
  bool is_in_memory = false;            ///< its files end with the node, and take its memory
  std::optional<int> stripes;           ///< Lustre: servers that a new file is spread over; -1: all
  std::int64_t free_bytes = 0;          ///< that this user may write
  std::string write_error;              ///< of creating, writing or flushing a file
  std::string lock_error;               ///< of flock(), which HDF5 calls
  std::string range_lock_error;         ///< of fcntl(), which MPI-IO calls on some file systems
  std::string hdf5_error;               ///< of creating an HDF5 file, as checkpoints are created
  std::int64_t test_bytes = 0;          ///< size of the file of the speed test
  std::optional<double> write_seconds;  ///< of writing it, with fsync
  std::optional<double> read_seconds;   ///< of reading it after the page cache was dropped
};

/// Examines a folder: creates files in it with names of this process, locks one, writes and reads
/// `test_bytes` bytes (0: no speed test), and removes them. Needs twice `test_bytes` of free space;
/// with less the speed is not tested. Errors of the file system are facts, not exceptions. May hang
/// as long as the file system does.
FolderFacts examine_folder(const std::string& folder, std::int64_t test_bytes);

/// Returns the name of a file system for the f_type of statfs(), or "0x1234" for an unknown one.
std::string file_system_name(std::int64_t magic);

/// Returns the stripe count of new files of a folder on Lustre, from `lfs getstripe`; none if the
/// command does not answer.
std::optional<int> lustre_stripes(const std::string& folder);

/// Creates an empty file that other nodes can look for, in a folder that can be written. Returns
/// its path; empty if it cannot be created.
std::string create_marker(const std::string& folder);
/// Returns whether the file appears within `seconds`: network file systems may show new names late.
bool appears(const std::string& path, double seconds);

}  // namespace trireme::io
