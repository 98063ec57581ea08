#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stored_rows.hpp"
#include "trireme/data/dataset_index.hpp"

namespace trireme::data {

/// A shard of images, with its labels in memory. Reads are thread-safe.
class ImageShard {
 public:
  /// `files` must outlive this.
  ImageShard(ShardIndex shard, io::FilePool& files, std::shared_ptr<RowCache> cache)
      : labels_(std::move(shard.labels)),
        images_(std::move(shard.path), shard.stamp, std::move(shard.rows), files,
                std::move(cache)) {}

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
