#include "trireme/parallel/sharding.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

std::vector<std::int64_t> counted_from(std::int64_t origin, std::vector<std::int64_t> offsets) {
  for (std::int64_t& offset : offsets) offset -= origin;
  return offsets;
}

}  // namespace

Shard::Shard(const ParameterList& list, const FlatLayout& layout, int rank, int size,
             std::int64_t window_elements)
    : parts_(list.entries().size()) {
  TRIREME_EXPECT(0 <= rank && rank < size && window_elements >= 0);
  const auto mine = static_cast<std::size_t>(rank);
  for (const FlatLayout::Bucket& bucket : layout.buckets()) {
    Bucket& shard = buckets_.emplace_back();
    shard.bounds = counted_from(bucket.begin, layout.shard_bounds(bucket, size));
    shard.working_bounds = counted_from(bucket.working_begin, layout.working_bounds(bucket, size));
    shard.begin = elements_;
    shard.end = elements_ += shard.bounds[mine + 1] - shard.bounds[mine];
  }
  for (const ops::FlatRow& row : layout.rows()) {
    const auto tensor = static_cast<std::size_t>(row.tensor);
    const FlatLayout::Slot& slot = layout.slots()[tensor];
    Bucket& shard = buckets_[static_cast<std::size_t>(slot.bucket)];
    const std::int64_t in_bucket =
        row.offset - layout.buckets()[static_cast<std::size_t>(slot.bucket)].begin;
    if (in_bucket < shard.bounds[mine] || in_bucket >= shard.bounds[mine + 1]) continue;
    const std::int64_t offset = shard.begin + in_bucket - shard.bounds[mine];
    const bool first_of_bucket = shard.run_end == 0;
    const bool full =
        window_elements > 0 && !windows_.empty() &&
        (first_of_bucket || offset + row.elements - windows_.back().begin > window_elements);
    if (windows_.empty() || full)
      windows_.push_back({.begin = offset, .row_begin = rows_.size(), .run_begin = runs_.size()});
    Window& window = windows_.back();
    const std::int64_t in_tensor = row.offset - slot.offset;
    const bool first_of_tensor =
        runs_.empty() || runs_.back().tensor != row.tensor;  // that is owned
    if (first_of_tensor) {
      parts_[tensor].row_begin = parts_[tensor].row_end = in_tensor / row.elements;
      parts_[tensor].offset = offset;
    }
    if (first_of_bucket) {
      shard.run_begin = runs_.size();
      shard.window_begin = windows_.size() - 1;
    }
    if (first_of_tensor || full)
      runs_.push_back({offset - window.begin, 0, slot.working + in_tensor * size_of(slot.type),
                       row.tensor, slot.type});
    runs_.back().elements += row.elements;
    ++parts_[tensor].row_end;
    rows_.push_back({offset - window.begin, row.elements, row.tensor});
    shard.run_end = window.run_end = runs_.size();
    shard.window_end = windows_.size();
    window.row_end = rows_.size();
  }
  if (windows_.empty()) windows_.emplace_back();
  for (std::size_t number = 1; number < windows_.size(); ++number)
    windows_[number - 1].end = windows_[number].begin;
  windows_.back().end = elements_;
}

std::int64_t Shard::longest_window() const {
  std::int64_t longest = 0;
  for (const Window& window : windows_) longest = std::max(longest, window.elements());
  return longest;
}

std::vector<ops::FlatChunk> Shard::chunks(const Window& window, std::int64_t chunk_elements) const {
  TRIREME_EXPECT(chunk_elements > 0);
  std::vector<ops::FlatChunk> chunks;
  for (std::size_t number = window.run_begin; number < window.run_end; ++number) {
    const Run& run = runs_[number];
    for (std::int64_t done = 0; done < run.elements; done += chunk_elements) {
      chunks.push_back(
          {.offset = run.offset + done,
           .elements = static_cast<std::int32_t>(std::min(chunk_elements, run.elements - done)),
           .tensor = run.tensor,
           .type = ops::element_type(run.type),
           .working = run.working + done * size_of(run.type)});
    }
  }
  return chunks;
}

}  // namespace trireme::parallel
