// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "trireme/io/file.hpp"

namespace trireme::io {

/// Opens files for reading when they are first used, and keeps the most recently used ones open.
/// Thread-safe.
class FilePool {
 public:
  /// `max_open`: files that stay open (> 0); fewer if this process may not open as many. Raises the
  /// limit of the process if it can.
  explicit FilePool(std::size_t max_open);

  /// Returns the open file. It stays open while the caller holds it, also after the pool has
  /// dropped it. `stamp`: of the file when it was indexed; throws InputError if it has changed.
  /// Throws the errors of File.
  std::shared_ptr<const File> open(const std::string& path,
                                   const std::optional<FileStamp>& stamp = std::nullopt);

 private:
  using Recent = std::list<std::shared_ptr<const File>>;
  /// Returns the file if it is open, else null. The caller holds the lock.
  std::shared_ptr<const File> find(const std::string& path);

  std::mutex mutex_;
  std::size_t max_open_;
  Recent recent_;  ///< the most recently used file first
  std::unordered_map<std::string, Recent::iterator> by_path_;
};

}  // namespace trireme::io
