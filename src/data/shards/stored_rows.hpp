// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
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
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {

/// A cache of decompressed rows of chunked HDF5 datasets, in blocks of adjacent rows. The least
/// recently used block is dropped first. All shards of a dataset share one. Thread-safe.
///
/// Cached blocks, and those that threads are reading, together have at most the budget: memory is
/// reserved before a block is read.
///
///   thread 1   reserve A | read A ............ | insert A
///   thread 2     reserve B: no room, wait ...  | drop A, reserve B | read B ... | insert B
///
/// A block of more than the budget is read alone. A thread may copy from a dropped block until it
/// has done so.
class RowCache {
 public:
  using Rows = std::shared_ptr<const std::vector<std::byte>>;
  explicit RowCache(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  /// Returns block `block` of dataset `owner`, which has `bytes` bytes. If it is not cached, it is
  /// read with `read`, without the lock: threads that need one block at the same time may all read
  /// it. Waits while the blocks that other threads are reading leave no room.
  template <class Read>
  Rows get(const void* owner, std::int64_t block, std::int64_t bytes, Read&& read) {
    const Key key{owner, block};
    if (Rows rows = find_or_reserve(key, bytes)) return rows;
    Rows rows;
    try {
      rows = read();
    } catch (...) {
      release(bytes);
      throw;
    }
    return insert(key, std::move(rows), bytes);
  }

 private:
  /// Dataset and block.
  using Key = std::pair<const void*, std::int64_t>;
  struct Entry {
    Key key;
    Rows rows;
  };
  /// Returns a cached block. If there is none, drops blocks until `bytes` bytes fit, reserves them
  /// and returns null.
  Rows find_or_reserve(const Key& key, std::int64_t bytes);
  /// Gives reserved bytes back.
  void release(std::int64_t bytes);
  /// Adds a block for which `bytes` bytes are reserved. Returns the cached one if another thread
  /// was faster.
  Rows insert(const Key& key, Rows rows, std::int64_t bytes);
  Rows find(const Key& key);
  void drop_oldest();

  std::mutex mutex_;
  std::condition_variable released_;
  std::list<Entry> entries_;  ///< the most recently used first
  std::map<Key, std::list<Entry>::iterator> index_;
  std::int64_t budget_bytes_, cached_bytes_ = 0;
  std::int64_t reserved_bytes_ = 0;  ///< of blocks that threads are reading
};

/// Reads rows of an HDF5 dataset of numbers; a row is one index of the first dimension.
///
/// The file is opened when a row is first read. Contiguous datasets are read with positioned reads,
/// all others through the cache. Reads are thread-safe.
class StoredRows {
 public:
  /// `memory`: the type in which rows are returned; none: the bits of the file, in the byte order
  /// of the machine. `files` must outlive this.
  StoredRows(std::string path, const io::FileStamp& stamp, io::StoredDataset dataset,
             io::FilePool& files, std::shared_ptr<RowCache> cache,
             std::optional<io::Hdf5Number> memory = std::nullopt);
  StoredRows(const StoredRows&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t row_bytes() const { return row_elements_ * io::size_of(memory_); }
  /// Copies rows [first, first + count). Throws InputError if the file
  /// ends too early or is damaged, Failure if the disk fails.
  void read(std::int64_t first, std::int64_t count, std::byte* rows) const;
  /// Asks the system to read rows of a contiguous dataset into the page cache soon. Ignores errors.
  void read_ahead(std::int64_t first, std::int64_t count) const;

 private:
  /// Returns one block of block_rows_ rows through the cache.
  RowCache::Rows row_block(std::int64_t block) const;
  void copy(const std::byte* stored, bool swapped, std::int64_t rows, std::byte* out) const;

  std::shared_ptr<const io::File> file() const { return files_.open(path_, stamp_); }

  std::string path_;
  std::optional<io::FileStamp> stamp_;
  io::StoredDataset dataset_;
  io::FilePool& files_;
  std::shared_ptr<RowCache> cache_;
  io::Hdf5Number memory_;
  bool is_contiguous_, converts_ = false;
  std::int64_t row_elements_ = 1, stored_row_bytes_ = 1;
  std::int64_t block_rows_ = 1;  ///< rows per block of the cache
};

}  // namespace trireme::data
