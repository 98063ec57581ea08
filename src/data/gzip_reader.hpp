#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trireme::data {

/// Reads a file from front to back, plain or compressed with gzip. Throws InputError that names the
/// file and the problem.
class GzipReader {
 public:
  /// Opens the file; gzip is recognized by the content, not by the name.
  explicit GzipReader(const std::string& path);
  ~GzipReader();
  GzipReader(GzipReader&&) noexcept;

  const std::string& path() const { return path_; }
  bool compressed() const;
  /// Returns the size on the disk, compressed if it is.
  std::int64_t file_bytes() const { return file_bytes_; }
  /// Fills `out` and returns the number of bytes, which is smaller only at the end of the file.
  /// Throws InputError if compressed data are damaged or cut off.
  std::size_t read(std::span<std::byte> out);

 private:
  struct Handle;
  std::string path_;
  std::int64_t file_bytes_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace trireme::data
