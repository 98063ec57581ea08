// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::io {

/// An exclusive lock between processes, also between those of several hosts where the file system
/// has such locks (flock). Released by the destructor, and by the system when the process ends.
class FileLock {
 public:
  enum class What : std::uint8_t { file, folder };

  /// Creates the file `path` if it is missing, and tries for `seconds` to lock it. A folder must
  /// exist; network file systems refuse to lock it. The calls are made in a thread, which is given
  /// up if the file system does not answer.
  ///
  /// Throws InputError if the path is wrong, and Failure if another process holds the lock or the
  /// file system does not answer. If the file system has no locks, held() is false.
  FileLock(const std::string& path, double seconds, What what = What::file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return descriptor_ >= 0; }
  /// Returns whether `path` still names what is locked.
  bool is_at(const std::string& path) const;

 private:
  int descriptor_ = -1;
};

/// Locks an existing folder. Returns none where that is impossible or takes more than `seconds`.
std::unique_ptr<FileLock> try_to_lock_folder(const std::string& folder, double seconds);

}  // namespace trireme::io
