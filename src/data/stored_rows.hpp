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

/// Runs of rows of chunked datasets, uncompressed, most recently used first: one for all shards of
/// a dataset. Thread-safe.
class RowCache {
 public:
  using Rows = std::shared_ptr<const std::vector<std::byte>>;
  explicit RowCache(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  /// The rows of key (owner, run), read by `read` where they are not held.
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

/// Rows of a dataset of unsigned numbers (a row: one index of its first dimension), by positioned
/// reads where they are contiguous and lie as in memory, else through HDF5. Reads are thread-safe.
class StoredRows {
 public:
  /// `file` is kept open where HDF5 does the reading.
  StoredRows(io::Hdf5File file, const std::string& dataset, std::shared_ptr<RowCache> cache);
  StoredRows(const StoredRows&) = delete;

  std::int64_t count() const { return shape_[0]; }
  std::int64_t row_bytes() const { return row_bytes_; }
  /// Copies rows [first, first + count), numbers in the machine's order. Throws InputError (the
  /// file ends before), Failure (the disk).
  void read(std::int64_t first, std::int64_t count, std::byte* rows) const;

 private:
  RowCache::Rows row_block(std::int64_t block) const;

  std::vector<std::int64_t> shape_;
  io::Hdf5Number number_;
  std::int64_t row_bytes_ = 1;
  io::File file_;  ///< contiguous: read at offset_
  std::int64_t offset_ = -1;
  std::optional<io::Hdf5File> hdf5_file_;  ///< chunked
  std::optional<io::Hdf5Dataset> dataset_;
  std::shared_ptr<RowCache> cache_;
  std::int64_t block_rows_ = 1;  ///< rows read at once from a chunked dataset
};

}  // namespace trireme::data
