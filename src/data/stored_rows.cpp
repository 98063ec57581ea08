// Reads rows of HDF5 datasets: contiguous ones with positioned reads, chunked ones through a cache.
#include "stored_rows.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t max_block_bytes = std::int64_t{64} << 20;
// Below this size the HDF5 call costs more time than the bytes.
constexpr std::int64_t min_block_bytes = 64 << 10;

io::Hdf5Number unsigned_number(std::int64_t bytes) {
  TRIREME_EXPECT(bytes == 1 || bytes == 2 || bytes == 4);
  return bytes == 1   ? io::Hdf5Number::uint8
         : bytes == 2 ? io::Hdf5Number::uint16
                      : io::Hdf5Number::uint32;
}

}  // namespace

template <class Read>
RowCache::Rows RowCache::get(const void* owner, std::int64_t block, Read&& read) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->owner != owner || entry->block != block) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->rows;
  }
  Rows rows = read();
  entries_.push_front({owner, block, rows});
  cached_bytes_ += static_cast<std::int64_t>(rows->size());
  while (cached_bytes_ > budget_bytes_ && entries_.size() > 1) {
    cached_bytes_ -= static_cast<std::int64_t>(entries_.back().rows->size());
    entries_.pop_back();
  }
  return rows;
}

StoredRows::StoredRows(io::Hdf5File file, const std::string& dataset,
                       std::shared_ptr<RowCache> cache)
    : cache_(std::move(cache)) {
  io::Hdf5Dataset stored = file.dataset(dataset);
  const io::Hdf5Description& description = stored.description();
  shape_ = description.shape;
  number_ = unsigned_number(description.element_bytes);
  row_bytes_ = description.element_bytes;
  for (std::size_t i = 1; i < shape_.size(); ++i) row_bytes_ *= shape_[i];
  if (description.offset >= 0 && description.native_order) {
    offset_ = description.offset;
    file_ = io::File(file.path(), io::File::Mode::read);
    return;
  }
  // Chunked: a cache block is at least one chunk, so that no chunk is decompressed twice in a row.
  const std::int64_t chunk_rows =
      std::clamp<std::int64_t>(description.chunk.empty() ? shape_[0] : description.chunk[0], 1,
                               std::max<std::int64_t>(shape_[0], 1));
  const std::int64_t chunks =
      std::max<std::int64_t>(1, min_block_bytes / (chunk_rows * row_bytes_));
  block_rows_ =
      std::min(chunk_rows * chunks, std::max<std::int64_t>(1, max_block_bytes / row_bytes_));
  dataset_.emplace(std::move(stored));
  hdf5_file_.emplace(std::move(file));
}

RowCache::Rows StoredRows::row_block(std::int64_t block) const {
  return cache_->get(this, block, [&] {
    std::vector<std::int64_t> start(shape_.size(), 0), extent = shape_;
    start[0] = block * block_rows_;
    extent[0] = std::min(block_rows_, shape_[0] - start[0]);
    auto rows =
        std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(extent[0] * row_bytes_));
    dataset_->read(start, extent, number_, rows->data());
    return RowCache::Rows(std::move(rows));
  });
}

void StoredRows::read(std::int64_t first, std::int64_t count, std::byte* rows) const {
  TRIREME_EXPECT(first >= 0 && count >= 0 && first + count <= shape_[0]);
  if (offset_ >= 0) {
    file_.read_at(offset_ + first * row_bytes_, rows, count * row_bytes_);
    return;
  }
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t block = (first + done) / block_rows_,
                       row_in_block = (first + done) % block_rows_;
    const std::int64_t part = std::min(count - done, block_rows_ - row_in_block);
    const RowCache::Rows held = row_block(block);
    std::memcpy(rows + done * row_bytes_, held->data() + row_in_block * row_bytes_,
                static_cast<std::size_t>(part * row_bytes_));
    done += part;
  }
}

}  // namespace trireme::data
