// Computes the part of the flat layout that a rank owns: cuts by bucket, then one pass over all
// rows that assigns owned rows to tensors and windows. Called by the constructor of ParameterStore.

#include "trireme/parallel/sharding.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

/// Returns the offsets relative to `origin`.
std::vector<std::int64_t> counted_from(std::int64_t origin, std::vector<std::int64_t> offsets) {
  for (std::int64_t& offset : offsets) offset -= origin;
  return offsets;
}

}  // namespace

ParameterShard::ParameterShard(const ParameterList& list, const FlatLayout& layout, int rank,
                               int size, std::int64_t max_window_elements)
    : owned_rows_(list.entries().size()) {
  TRIREME_EXPECT(0 <= rank && rank < size && max_window_elements >= 0);
  const auto mine = static_cast<std::size_t>(rank);
  // 1. Position of this rank's part of each bucket.
  for (const FlatLayout::Bucket& bucket : layout.buckets()) {
    Bucket& shard = buckets_.emplace_back();
    shard.bounds = counted_from(bucket.begin, layout.shard_bounds(bucket, size));
    shard.working_bounds = counted_from(bucket.working_begin, layout.working_bounds(bucket, size));
    shard.begin = elements_;
    shard.end = elements_ += shard.bounds[mine + 1] - shard.bounds[mine];
    if (!bucket.frozen) trained_elements_ = elements_;
  }
  // 2. All rows in flat order; skip those of other ranks.
  for (const ops::FlatRow& row : layout.rows()) {
    const auto tensor = static_cast<std::size_t>(row.tensor);
    const FlatLayout::FlatTensor& flat_tensor = layout.tensors()[tensor];
    Bucket& shard = buckets_[static_cast<std::size_t>(flat_tensor.bucket)];
    const std::int64_t in_bucket =
        row.offset - layout.buckets()[static_cast<std::size_t>(flat_tensor.bucket)].begin;
    if (in_bucket < shard.bounds[mine] || in_bucket >= shard.bounds[mine + 1]) continue;
    const std::int64_t offset = shard.begin + in_bucket - shard.bounds[mine];
    const bool first_of_bucket = shard.range_end == 0;
    const bool frozen = layout.buckets()[static_cast<std::size_t>(flat_tensor.bucket)].frozen;
    // A window ends with its bucket, or before the row that would exceed its size, or before the
    // first frozen tensor.
    const bool full =
        (frozen && !windows_.empty() && trained_windows_ == windows_.size()) ||
        (max_window_elements > 0 && !windows_.empty() &&
         (first_of_bucket || offset + row.elements - windows_.back().begin > max_window_elements));
    if (windows_.empty() || full)
      windows_.push_back(
          {.begin = offset, .row_begin = rows_.size(), .range_begin = tensor_ranges_.size()});
    if (!frozen) trained_windows_ = windows_.size();
    Window& window = windows_.back();
    const std::int64_t in_tensor = row.offset - flat_tensor.offset;
    // The first row of this tensor that this rank owns.
    const bool first_of_tensor =
        tensor_ranges_.empty() || tensor_ranges_.back().tensor != row.tensor;
    if (first_of_tensor) {
      owned_rows_[tensor].row_begin = owned_rows_[tensor].row_end = in_tensor / row.elements;
      owned_rows_[tensor].offset = offset;
    }
    if (first_of_bucket) {
      shard.range_begin = tensor_ranges_.size();
      shard.window_begin = windows_.size() - 1;
    }
    if (first_of_tensor || full)
      tensor_ranges_.push_back({offset - window.begin, 0,
                                flat_tensor.working_begin + in_tensor * size_of(flat_tensor.type),
                                row.tensor, flat_tensor.type});
    tensor_ranges_.back().elements += row.elements;
    ++owned_rows_[tensor].row_end;
    rows_.push_back({offset - window.begin, row.elements, row.tensor});
    shard.range_end = window.range_end = tensor_ranges_.size();
    shard.window_end = windows_.size();
    window.row_end = rows_.size();
  }
  // 3. Close the gaps between windows (alignment of tensors).
  if (windows_.empty()) {
    windows_.emplace_back();
    trained_windows_ = 1;
  }
  for (std::size_t number = 1; number < windows_.size(); ++number)
    windows_[number - 1].end = windows_[number].begin;
  windows_.back().end = elements_;
}

std::int64_t ParameterShard::largest_elements(std::span<const Window> windows) {
  std::int64_t largest = 0;
  for (const Window& window : windows) largest = std::max(largest, window.elements());
  return largest;
}

std::vector<ops::FlatChunk> ParameterShard::chunks(const Window& window,
                                                   std::int64_t chunk_elements) const {
  TRIREME_EXPECT(chunk_elements > 0);
  std::vector<ops::FlatChunk> chunks;
  for (std::size_t number = window.range_begin; number < window.range_end; ++number) {
    const TensorRange& range = tensor_ranges_[number];
    for (std::int64_t done = 0; done < range.elements; done += chunk_elements) {
      chunks.push_back(
          {.offset = range.offset + done,
           .elements = static_cast<std::int32_t>(std::min(chunk_elements, range.elements - done)),
           .tensor = range.tensor,
           .working_type = ops::element_type(range.type),
           .working_offset = range.working_begin + done * size_of(range.type)});
    }
  }
  return chunks;
}

}  // namespace trireme::parallel
