#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/update.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::parallel {

/// Where each parameter lies in the flat buffers. Blocks stand in the order in which backward finishes them (last block first), so the
/// first bucket is the first to be ready. Every tensor is contiguous and starts at a multiple of 16 elements (the gaps stay 0).
class FlatLayout {
 public:
  struct Slot {
    std::int64_t offset = 0;    ///< elements from the start of the flat buffer
    std::int64_t elements = 0;
    int block = 0, bucket = 0;
    bool compute_copy = false;
  };
  /// A range of the flat buffer that is reduced as a whole, ready when backward of `ready_block` is done.
  struct Bucket {
    std::int64_t begin = 0, end = 0;
    int ready_block = 0;
  };

  FlatLayout() = default;
  /// A bucket is closed at the first end of a block at which it holds `bucket_bytes` (float32) or more.
  FlatLayout(const ParameterList& list, std::int64_t bucket_bytes);

  std::int64_t elements() const { return elements_; }
  const Slot& slot(ParameterId id) const { return slots_[static_cast<std::size_t>(id.index)]; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// All atoms in flat order.
  const std::vector<ops::FlatRow>& rows() const { return rows_; }
  /// The flat buffer in pieces of at most `chunk_elements` that each lie in one tensor.
  std::vector<ops::FlatChunk> chunks(std::int64_t chunk_elements = 16384) const;
  /// The cuts of a bucket into `shards` parts, each at an atom's boundary, as even as that allows: shards + 1 offsets.
  std::vector<std::int64_t> shard_bounds(const Bucket& bucket, int shards) const;

 private:
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<ops::FlatRow> rows_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme::parallel
