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

Shard::Shard(const ParameterList& list, const FlatLayout& layout, int rank, int size) : parts_(list.entries().size()) {
  TRIREME_EXPECT(0 <= rank && rank < size);
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
    const std::int64_t in_bucket = row.offset - layout.buckets()[static_cast<std::size_t>(slot.bucket)].begin;
    if (in_bucket < shard.bounds[mine] || in_bucket >= shard.bounds[mine + 1]) continue;
    const std::int64_t offset = shard.begin + in_bucket - shard.bounds[mine];
    if (runs_.empty() || runs_.back().tensor != row.tensor) {  // the first of the tensor's rows that is owned
      const std::int64_t in_tensor = row.offset - slot.offset;
      if (shard.run_end == 0) shard.run_begin = runs_.size();
      shard.run_end = runs_.size() + 1;
      runs_.push_back({offset, 0, slot.working + in_tensor * size_of(slot.type), row.tensor, slot.type});
      parts_[tensor].row_begin = parts_[tensor].row_end = in_tensor / row.elements;
      parts_[tensor].offset = offset;
    }
    runs_.back().elements += row.elements;
    ++parts_[tensor].row_end;
    rows_.push_back({offset, row.elements, row.tensor});
  }
}

std::vector<ops::FlatChunk> Shard::chunks(std::int64_t chunk_elements) const {
  TRIREME_EXPECT(chunk_elements > 0);
  std::vector<ops::FlatChunk> chunks;
  for (const Run& run : runs_) {
    for (std::int64_t done = 0; done < run.elements; done += chunk_elements) {
      chunks.push_back({.offset = run.offset + done,
                        .elements = static_cast<std::int32_t>(std::min(chunk_elements, run.elements - done)),
                        .tensor = run.tensor,
                        .bfloat16 = run.type == DType::bfloat16,
                        .working = run.working + done * size_of(run.type)});
    }
  }
  return chunks;
}

}  // namespace trireme::parallel
