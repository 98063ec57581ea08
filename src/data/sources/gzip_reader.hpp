// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "trireme/io/file_form.hpp"

namespace trireme::data {

/// Reads a file from front to back, plain or compressed with gzip. Throws InputError that names the
/// file and the problem; a file that is compressed twice is one.
class GzipReader {
 public:
  /// Opens the file; gzip is recognized by the content, not by the name.
  explicit GzipReader(const std::string& path);
  ~GzipReader();
  GzipReader(GzipReader&&) noexcept;

  const std::string& path() const { return path_; }
  bool compressed() const;
  /// Returns the well-known form that compressed content has; none for a plain file.
  const std::optional<io::FileForm>& content_form() const { return content_form_; }
  /// Returns the size on the disk, compressed if it is.
  std::int64_t file_bytes() const;
  /// Fills `out` and returns the number of bytes, which is smaller only at the end of the file.
  /// Throws InputError if compressed data are damaged or cut off, if anything but zeros follows
  /// them, or if they unpack to more than they may (unpacking.hpp).
  std::size_t read(std::span<std::byte> out);

 private:
  void check_content();
  class Stream;
  std::string path_;
  std::int64_t unpacked_bytes_ = 0;
  std::unique_ptr<Stream> stream_;
  std::optional<io::FileForm> content_form_;
};

}  // namespace trireme::data
