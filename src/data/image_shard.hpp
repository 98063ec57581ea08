#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stored_rows.hpp"
#include "trireme/data/shard.hpp"

namespace trireme::data {

/// An open shard of images, with its labels in memory. Reads are thread-safe.
class ImageShard {
 public:
  /// Reads all labels. Throws InputError that names file and dataset if a label is not a class.
  ImageShard(io::Hdf5File file, const ShardDescription& header, std::shared_ptr<RowCache> cache);

  const std::vector<std::int32_t>& labels() const { return labels_; }
  std::int64_t sample_bytes() const { return images_.row_bytes(); }
  /// Copies the images of samples [first, first + count).
  void read(std::int64_t first, std::int64_t count, std::byte* images) const {
    images_.read(first, count, images);
  }

 private:
  std::vector<std::int32_t> labels_;
  StoredRows images_;
};

}  // namespace trireme::data
