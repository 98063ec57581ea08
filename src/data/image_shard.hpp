#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/shard.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::data {

/// Runs of rows of chunked images, uncompressed, most recently used first: one for all shards of a dataset. Thread-safe.
class RowCache {
 public:
  using Rows = std::shared_ptr<const std::vector<std::byte>>;
  explicit RowCache(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  /// The rows of key (shard, run), read by `read` where they are not held.
  template <class Read>
  Rows get(const void* shard, std::int64_t run, Read&& read);

 private:
  struct Entry {
    const void* shard;
    std::int64_t run;
    Rows rows;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
  std::int64_t budget_bytes_, held_bytes_ = 0;
};

/// One open shard of images, its labels in memory. Reads are thread-safe.
class ImageShard {
 public:
  /// Throws InputError naming file and dataset: another kind, labels that are no classes.
  ImageShard(const std::string& path, std::shared_ptr<RowCache> cache);

  const ShardDescription& header() const { return header_; }
  const std::vector<std::int32_t>& labels() const { return labels_; }
  std::int64_t sample_bytes() const { return header_.height * header_.width * header_.channels; }
  /// Copies the images of samples [first, first + count).
  void read(std::int64_t first, std::int64_t count, std::byte* images) const;

 private:
  void read_labels(const io::Hdf5File& file);
  RowCache::Rows run_of_rows(std::int64_t run) const;

  std::string path_;
  ShardDescription header_;
  std::vector<std::int32_t> labels_;
  io::File file_;             ///< contiguous images: read at offset_
  std::int64_t offset_ = -1;
  std::optional<io::Hdf5File> container_;  ///< chunked images
  std::optional<io::Hdf5Dataset> images_;
  std::shared_ptr<RowCache> cache_;
  std::int64_t run_rows_ = 1;  ///< rows read at once from chunked images
};

}  // namespace trireme::data
