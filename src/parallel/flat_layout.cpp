#include "trireme/parallel/flat_layout.hpp"

#include <algorithm>
#include <cstdlib>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

// A cache line of float32: vector loads of any tensor are aligned, and no two tensors share a line.
constexpr std::int64_t start_multiple = 16;

std::int64_t round_up(std::int64_t elements) { return (elements + start_multiple - 1) / start_multiple * start_multiple; }

/// Indices of the parameters in flat order: last block first, as declared within a block.
std::vector<std::size_t> flat_order(const ParameterList& list) {
  std::vector<std::size_t> order(list.entries().size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return list.entries()[a].block > list.entries()[b].block; });
  return order;
}

}  // namespace

FlatLayout::FlatLayout(const ParameterList& list, std::int64_t bucket_bytes) : slots_(list.entries().size()) {
  const std::vector<std::size_t> order = flat_order(list);
  std::int64_t bucket_begin = 0;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const ParameterList::Entry& entry = list.entries()[order[place]];
    const ParameterSpec& spec = entry.spec;
    slots_[order[place]] = {elements_, spec.shape.elements(), entry.block, static_cast<int>(buckets_.size()), spec.compute_copy};
    for (std::int64_t row = 0; row < spec.rows(); ++row) {
      rows_.push_back({elements_ + row * spec.row_elements(), spec.row_elements(), static_cast<std::int32_t>(order[place])});
    }
    elements_ += round_up(spec.shape.elements());
    const bool last = place + 1 == order.size();
    const bool block_ends = last || list.entries()[order[place + 1]].block != entry.block;
    const bool full = (elements_ - bucket_begin) * size_of(DType::float32) >= bucket_bytes;
    if (last || (block_ends && full)) {
      buckets_.push_back({bucket_begin, elements_, entry.block});
      bucket_begin = elements_;
    }
  }
}

std::vector<ops::FlatChunk> FlatLayout::chunks(std::int64_t chunk_elements) const {
  TRIREME_EXPECT(chunk_elements > 0);
  std::vector<ops::FlatChunk> chunks;
  std::int32_t previous = -1;
  for (const ops::FlatRow& row : rows_) {  // rows_ name the tensors in flat order
    if (row.tensor == previous) continue;
    previous = row.tensor;
    const Slot& slot = slots_[static_cast<std::size_t>(row.tensor)];
    for (std::int64_t done = 0; done < slot.elements; done += chunk_elements) {
      chunks.push_back({slot.offset + done, static_cast<std::int32_t>(std::min(chunk_elements, slot.elements - done)), row.tensor});
    }
  }
  return chunks;
}

std::vector<std::int64_t> FlatLayout::shard_bounds(const Bucket& bucket, int shards) const {
  TRIREME_EXPECT(shards > 0);
  const auto starts_before = [](const ops::FlatRow& row, std::int64_t offset) { return row.offset < offset; };
  const auto first = std::lower_bound(rows_.begin(), rows_.end(), bucket.begin, starts_before);
  const auto last = std::lower_bound(first, rows_.end(), bucket.end, starts_before);
  std::vector<std::int64_t> bounds{bucket.begin};
  for (int shard = 1; shard < shards; ++shard) {
    const std::int64_t ideal = bucket.begin + (bucket.end - bucket.begin) * shard / shards;
    const auto after = std::lower_bound(first, last, ideal, starts_before);
    const std::int64_t above = after == last ? bucket.end : after->offset;
    const std::int64_t below = after == first ? bucket.begin : (after - 1)->offset;
    bounds.push_back(above - ideal <= ideal - below ? above : below);
  }
  bounds.push_back(bucket.end);
  return bounds;
}

}  // namespace trireme::parallel
