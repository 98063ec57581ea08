#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/io/file.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::data {

/// A cache of decompressed rows of chunked HDF5 datasets, in blocks of adjacent rows. The least
/// recently used block is dropped first. All shards of a dataset share one. Thread-safe.
class RowCache {
 public:
  using Rows = std::shared_ptr<const std::vector<std::byte>>;
  explicit RowCache(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  /// Returns block `block` of dataset `owner`. If it is not cached, it is read with `read` while
  /// the lock is held: HDF5 reads are serial anyway.
  template <class Read>
  Rows get(const void* owner, std::int64_t block, Read&& read);

 private:
  struct Entry {
    const void* owner;
    std::int64_t block;
    Rows rows;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
  std::int64_t budget_bytes_, cached_bytes_ = 0;
};

/// Reads rows of an HDF5 dataset of unsigned integers; a row is one index of the first dimension.
///
/// Contiguous datasets in the machine's byte order are read with positioned reads, all others
/// through HDF5 and the cache. Reads are thread-safe.
class StoredRows {
 public:
  /// Opens `dataset` of `file`. The file stays open only if HDF5 is needed for reading.
  StoredRows(io::Hdf5File file, const std::string& dataset, std::shared_ptr<RowCache> cache);
  StoredRows(const StoredRows&) = delete;

  std::int64_t count() const { return shape_[0]; }
  std::int64_t row_bytes() const { return row_bytes_; }
  /// Copies rows [first, first + count) in the machine's byte order. Throws InputError if the file
  /// ends too early, Failure if the disk fails.
  void read(std::int64_t first, std::int64_t count, std::byte* rows) const;

 private:
  /// Returns one block of block_rows_ rows through the cache.
  RowCache::Rows row_block(std::int64_t block) const;

  std::vector<std::int64_t> shape_;
  io::Hdf5Number number_;
  std::int64_t row_bytes_ = 1;
  io::File file_;  ///< contiguous: rows begin at offset_
  std::int64_t offset_ = -1;
  std::optional<io::Hdf5File> hdf5_file_;  ///< chunked
  std::optional<io::Hdf5Dataset> dataset_;
  std::shared_ptr<RowCache> cache_;
  std::int64_t block_rows_ = 1;  ///< chunked: rows per block of the cache
};

}  // namespace trireme::data
