// SPDX-License-Identifier: Apache-2.0
//
// Reads rows of HDF5 datasets: contiguous ones with positioned reads, all others through a cache.
#include "stored_rows.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/base/check.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {
namespace {

// Below this size looking up a block costs more time than copying it.
constexpr std::int64_t min_block_bytes = 64 << 10;

io::Hdf5Number unsigned_number(std::int64_t bytes) {
  TRIREME_EXPECT(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  return bytes == 1   ? io::Hdf5Number::uint8
         : bytes == 2 ? io::Hdf5Number::uint16
         : bytes == 4 ? io::Hdf5Number::uint32
                      : io::Hdf5Number::uint64;
}

}  // namespace

RowCache::Rows RowCache::find(const Key& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->rows;
}

void RowCache::drop_oldest() {
  cached_bytes_ -= static_cast<std::int64_t>(entries_.back().rows->size());
  index_.erase(entries_.back().key);
  entries_.pop_back();
}

RowCache::Rows RowCache::find_or_reserve(const Key& key, std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (Rows rows = find(key)) return rows;
    if (reserved_bytes_ == 0 || reserved_bytes_ + bytes <= budget_bytes_) break;
    released_.wait(lock);  // the block may be cached then
  }
  while (!entries_.empty() && cached_bytes_ + reserved_bytes_ + bytes > budget_bytes_)
    drop_oldest();
  reserved_bytes_ += bytes;
  return nullptr;
}

void RowCache::release(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= bytes;
  released_.notify_all();
}

RowCache::Rows RowCache::insert(const Key& key, Rows rows, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= bytes;
  released_.notify_all();
  if (Rows others = find(key)) return others;
  entries_.push_front({key, rows});
  index_.emplace(key, entries_.begin());
  cached_bytes_ += static_cast<std::int64_t>(rows->size());
  return rows;
}

StoredRows::StoredRows(std::string path, const io::FileStamp& stamp, io::StoredDataset dataset,
                       io::FilePool& files, std::shared_ptr<RowCache> cache,
                       std::optional<io::Hdf5Number> memory)
    : path_(std::move(path)),
      stamp_(stamp),
      dataset_(std::move(dataset)),
      files_(files),
      cache_(std::move(cache)),
      memory_(memory.value_or(unsigned_number(dataset_.element_bytes))),
      is_contiguous_(dataset_.storage == io::StoredDataset::Storage::contiguous) {
  TRIREME_EXPECT(!memory || memory_ == io::Hdf5Number::float32 ||
                 memory_ == io::Hdf5Number::float64);
  if (!memory) {
    // Integers of the same size are read, so that no number is converted.
    dataset_.kind = io::StoredDataset::Kind::integer;
    dataset_.is_signed = false;
  }
  converts_ = memory && (dataset_.kind != io::StoredDataset::Kind::real ||
                         dataset_.element_bytes != io::size_of(memory_));
  for (std::size_t i = 1; i < dataset_.shape.size(); ++i) row_elements_ *= dataset_.shape[i];
  stored_row_bytes_ = row_elements_ * dataset_.element_bytes;
  // A block is a multiple of a row of chunks, so that no chunk is decompressed twice in a row.
  const std::int64_t rows = std::max<std::int64_t>(dataset_.shape[0], 1),
                     chunk_rows = std::clamp<std::int64_t>(
                         dataset_.chunk.empty() ? 1 : dataset_.chunk[0], 1, rows);
  block_rows_ =
      chunk_rows *
      std::max<std::int64_t>(
          1, min_block_bytes / (chunk_rows * std::max<std::int64_t>(1, stored_row_bytes_)));
}

RowCache::Rows StoredRows::row_block(std::int64_t block) const {
  const std::int64_t first = block * block_rows_,
                     count = std::min(block_rows_, dataset_.shape[0] - first);
  return cache_->get(this, block, count * stored_row_bytes_, [&] {
    std::vector<std::int64_t> start(dataset_.shape.size(), 0), extent = dataset_.shape;
    start[0] = first;
    extent[0] = count;
    // As they are stored, in the byte order of the machine: a cache of small numbers stays small.
    io::StoredDataset bits = dataset_;
    bits.kind = io::StoredDataset::Kind::integer;
    bits.is_signed = false;
    auto rows = std::make_shared<std::vector<std::byte>>(
        static_cast<std::size_t>(count * stored_row_bytes_));
    io::read_values(*file(), bits, start, extent, unsigned_number(dataset_.element_bytes),
                    rows->data());
    return RowCache::Rows(std::move(rows));
  });
}

/// Copies elements of the file to their place, converted.
void StoredRows::copy(const std::byte* stored, bool swapped, std::int64_t rows,
                      std::byte* out) const {
  if (converts_ || swapped)
    io::convert_values(dataset_, stored, swapped, rows * row_elements_, memory_, out);
  else
    std::memcpy(out, stored, static_cast<std::size_t>(rows * stored_row_bytes_));
}

void StoredRows::read_ahead(std::int64_t first, std::int64_t count) const {
  if (!is_contiguous_) return;
  try {
    file()->read_ahead(dataset_.offset + first * stored_row_bytes_, count * stored_row_bytes_);
  } catch (const std::exception&) {
    // read() reports a file that cannot be opened.
  }
}

void StoredRows::read(std::int64_t first, std::int64_t count, std::byte* rows) const {
  TRIREME_EXPECT(first >= 0 && count >= 0 && first + count <= dataset_.shape[0]);
  if (count == 0) return;
  if (is_contiguous_) {
    const std::int64_t offset = dataset_.offset + first * stored_row_bytes_,
                       bytes = count * stored_row_bytes_;
    if (!converts_ && dataset_.native_order) return file()->read_at(offset, rows, bytes);
    // Readers are threads of the loader, which keep the memory.
    thread_local std::vector<std::byte> stored;
    stored.resize(static_cast<std::size_t>(bytes));
    file()->read_at(offset, stored.data(), bytes);
    return copy(stored.data(), !dataset_.native_order, count, rows);
  }
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t block = (first + done) / block_rows_,
                       row_in_block = (first + done) % block_rows_;
    const std::int64_t part = std::min(count - done, block_rows_ - row_in_block);
    const RowCache::Rows held = row_block(block);
    copy(held->data() + row_in_block * stored_row_bytes_, false, part, rows + done * row_bytes());
    done += part;
  }
}

}  // namespace trireme::data
