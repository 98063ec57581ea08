#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trireme::data {

/// A file that is read from front to back, plain or compressed with gzip. Throws InputError naming
/// file and fault.
class GzipReader {
 public:
  explicit GzipReader(const std::string& path);
  ~GzipReader();
  GzipReader(GzipReader&&) noexcept;

  const std::string& path() const { return path_; }
  bool compressed() const;
  std::int64_t file_bytes() const { return file_bytes_; }  ///< as it lies on the disk
  /// Fills `out` as far as the file goes and returns the bytes given: fewer only at its end. Throws
  /// where the compressed data are damaged or cut short.
  std::size_t read(std::span<std::byte> out);

 private:
  struct Handle;
  std::string path_;
  std::int64_t file_bytes_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace trireme::data
