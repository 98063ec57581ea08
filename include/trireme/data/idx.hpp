#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

class GzipReader;

/// A file in the idx form of MNIST (bytes only), plain or compressed with gzip. The header is
/// checked at once, the length as far as reading goes and by finish(). Throws InputError naming
/// file and fault.
class IdxReader {
 public:
  /// `rank`: how many dimensions are meant (images 3, labels 1).
  IdxReader(const std::string& path, int rank);
  ~IdxReader();
  IdxReader(IdxReader&&) noexcept;

  /// Extents, items first.
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t item_bytes() const;
  /// Passes over items without keeping them.
  void skip(std::int64_t items);
  /// The next items; out.size() is a multiple of item_bytes().
  void read(std::span<std::byte> out);
  /// After the last item: throws where bytes are left over (or the compressed stream's own checksum
  /// is wrong).
  void finish();

 private:
  std::string path_;
  std::unique_ptr<GzipReader> file_;
  std::vector<std::int64_t> shape_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace trireme::data
