// SPDX-License-Identifier: Apache-2.0
//
// Computes the part of the flat layout that a rank owns: cuts by bucket, then one pass over all
// tensors that assigns their owned rows to windows. Called by the constructor of ParameterStore.

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
  const std::vector<std::vector<std::int64_t>> bounds = layout.shard_bounds(size);
  for (std::size_t index = 0; index < bounds.size(); ++index) {
    const FlatLayout::Bucket& bucket = layout.buckets()[index];
    Bucket& shard = buckets_.emplace_back();
    shard.bounds = counted_from(bucket.begin, bounds[index]);
    shard.working_bounds =
        counted_from(bucket.working_begin, layout.working_bounds(bucket, bounds[index]));
    shard.begin = elements_;
    shard.end = elements_ += shard.bounds[mine + 1] - shard.bounds[mine];
    if (!bucket.frozen) trained_elements_ = elements_;
  }
  // 2. The rows of each tensor that are in this rank's part of their bucket.
  std::size_t row_count = 0;
  for (const RowRun& run : layout.runs()) {
    const auto tensor = static_cast<std::size_t>(run.tensor);
    const FlatLayout::FlatTensor& flat_tensor = layout.tensors()[tensor];
    const FlatLayout::Bucket& bucket =
        layout.buckets()[static_cast<std::size_t>(flat_tensor.bucket)];
    Bucket& shard = buckets_[static_cast<std::size_t>(flat_tensor.bucket)];
    const std::int64_t part_begin = bucket.begin + shard.bounds[mine],
                       first = run.rows_before(part_begin),
                       end = run.rows_before(bucket.begin + shard.bounds[mine + 1]);
    if (first == end) continue;
    const auto offset_of = [&](std::int64_t row) {
      return shard.begin + run.begin_of(row) - part_begin;
    };
    const std::int64_t tensor_rows = list.entries()[tensor].partition.rows() / run.rows;
    owned_rows_[tensor] = {first * tensor_rows, end * tensor_rows, offset_of(first)};
    // Divide them into windows. A window ends with its bucket, or before the row that would exceed
    // its size, or before the first frozen tensor.
    for (std::int64_t row = first; row < end;) {
      const std::int64_t offset = offset_of(row);
      const bool first_of_bucket = shard.range_end == 0;
      const bool full =
          (bucket.frozen && !windows_.empty() && trained_windows_ == windows_.size()) ||
          (max_window_elements > 0 && !windows_.empty() &&
           (first_of_bucket ||
            offset + run.row_elements - windows_.back().begin > max_window_elements));
      if (windows_.empty() || full)
        windows_.push_back(
            {.begin = offset, .row_begin = row_count, .range_begin = tensor_ranges_.size()});
      if (!bucket.frozen) trained_windows_ = windows_.size();
      Window& window = windows_.back();
      // At least one row, also if it is longer than a window.
      std::int64_t rows = end - row;
      if (max_window_elements > 0)
        rows = std::clamp<std::int64_t>(
            (window.begin + max_window_elements - offset) / run.row_elements, 1, rows);
      if (first_of_bucket) {
        shard.range_begin = tensor_ranges_.size();
        shard.window_begin = windows_.size() - 1;
      }
      tensor_ranges_.push_back(
          {.offset = offset - window.begin,
           .elements = rows * run.row_elements,
           .row_elements = run.row_elements,
           .working_begin = flat_tensor.working_begin +
                            (run.begin_of(row) - flat_tensor.offset) * size_of(flat_tensor.type),
           .tensor = run.tensor,
           .type = flat_tensor.type});
      row += rows;
      row_count += static_cast<std::size_t>(rows);
      shard.range_end = window.range_end = tensor_ranges_.size();
      shard.window_end = windows_.size();
      window.row_end = row_count;
    }
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

std::vector<ops::FlatRow> ParameterShard::make_rows() const {
  std::vector<RowRun> runs;
  for (const TensorRange& range : tensor_ranges_)
    runs.push_back(
        {range.offset, range.row_elements, range.elements / range.row_elements, range.tensor});
  return parallel::make_rows(runs);
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
