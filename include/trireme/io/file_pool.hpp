#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
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
  /// dropped it. Throws the errors of File.
  std::shared_ptr<const File> open(const std::string& path);

 private:
  using Recent = std::list<std::shared_ptr<const File>>;
  std::mutex mutex_;
  std::size_t max_open_;
  Recent recent_;  ///< the most recently used file first
  std::unordered_map<std::string, Recent::iterator> by_path_;
};

}  // namespace trireme::io
