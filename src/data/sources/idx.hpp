// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

class GzipReader;

/// Reads a file in the idx format of MNIST (bytes only), plain or compressed with gzip, from front
/// to back. `trireme shard` uses it.
///
/// The constructor checks the header. The length of the data is checked while reading, and by
/// finish(). All functions throw InputError that names the file and the problem.
class IdxReader {
 public:
  /// The kind of the items. Images have extents [count, height, width], or [.., channels] with 1 to
  /// 1024 channels.
  enum class Items { labels, images };
  IdxReader(const std::string& path, Items items);
  ~IdxReader();
  IdxReader(IdxReader&&) noexcept;

  /// Returns the extents; the first one is the number of items.
  const std::vector<std::int64_t>& shape() const { return shape_; }
  bool compressed() const;
  /// Returns the size on the disk.
  std::int64_t file_bytes() const;
  /// Returns the bytes before the first item, and those of one item, decompressed.
  std::int64_t header_bytes() const { return 4 + 4 * std::ssize(shape_); }
  std::int64_t item_bytes() const;
  /// Skips the next items. Compressed data are decompressed nevertheless.
  void skip(std::int64_t items);
  /// Reads the next items; out.size() is a multiple of item_bytes().
  void read(std::span<std::byte> out);
  /// Throws InputError if data follow the last item, or if gzip's checksum is wrong. Call it after
  /// the last item.
  void finish();

 private:
  std::string path_;
  std::unique_ptr<GzipReader> file_;
  std::vector<std::int64_t> shape_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace trireme::data
