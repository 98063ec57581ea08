#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/io/file_pool.hpp"
#include "trireme/io/hdf5_index.hpp"

namespace trireme::data {

/// A cache of decompressed rows of chunked HDF5 datasets, in blocks of adjacent rows. The least
/// recently used block is dropped first. All shards of a dataset share one. Thread-safe.
class RowCache {
 public:
  using Rows = std::shared_ptr<const std::vector<std::byte>>;
  explicit RowCache(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  /// Returns block `block` of dataset `owner`. If it is not cached, it is read with `read`, without
  /// the lock: threads that need one block at the same time may all read it.
  template <class Read>
  Rows get(const void* owner, std::int64_t block, Read&& read);

 private:
  /// Dataset and block.
  using Key = std::pair<const void*, std::int64_t>;
  struct Entry {
    Key key;
    Rows rows;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  ///< the most recently used first
  std::map<Key, std::list<Entry>::iterator> index_;
  std::int64_t budget_bytes_, cached_bytes_ = 0;
};

/// Reads rows of an HDF5 dataset of numbers, as they are stored; a row is one index of the first
/// dimension.
///
/// The file is opened when a row is first read. Contiguous datasets in the machine's byte order are
/// read with positioned reads, all others through the cache. Reads are thread-safe.
class StoredRows {
 public:
  /// `files` must outlive this.
  StoredRows(std::string path, const io::FileStamp& stamp, io::StoredDataset dataset,
             io::FilePool& files, std::shared_ptr<RowCache> cache);
  StoredRows(const StoredRows&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  /// Copies rows [first, first + count) in the machine's byte order. Throws InputError if the file
  /// ends too early or is damaged, Failure if the disk fails.
  void read(std::int64_t first, std::int64_t count, std::byte* rows) const;
  /// Asks the system to read rows of a contiguous dataset into the page cache soon. Ignores errors.
  void read_ahead(std::int64_t first, std::int64_t count) const;

 private:
  /// Returns one block of block_rows_ rows through the cache.
  RowCache::Rows row_block(std::int64_t block) const;

  std::shared_ptr<const io::File> file() const { return files_.open(path_, stamp_); }

  std::string path_;
  std::optional<io::FileStamp> stamp_;
  io::StoredDataset dataset_;
  io::FilePool& files_;
  std::shared_ptr<RowCache> cache_;
  bool direct_;  ///< rows are read from the file as they are
  std::int64_t row_bytes_ = 1;
  std::int64_t block_rows_ = 1;  ///< rows per block of the cache
};

}  // namespace trireme::data
