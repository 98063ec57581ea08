#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/update.hpp"
#include "trireme/parallel/flat_layout.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::parallel {

/// What the replicas hold only a part of, and who they are.
struct Sharding {
  ShardKind kind = ShardKind::none;
  comm::Communicator data;         ///< the data-parallel group
  comm::Engine* engine = nullptr;  ///< gathers weights; null where nothing is sharded
  std::int64_t max_window_elements =
      0;  ///< at most so many come from host memory at once (or one row); 0: all lies on the device
  int rank() const { return data.rank(); }
  int size() const { return data.size(); }
};

/// What one rank of `size` owns of a flat layout: its shards of all buckets, one after the other in
/// shard buffers (float32). The only rank of one owns everything, and its shard buffers are the
/// flat buffers. What works through shard buffers does so window by window: a window is all of
/// them, or a piece of a bucket's shard, cut between rows, that comes to the device as a whole.
/// Offsets of runs, rows and chunks count from their window's begin.
class ParameterShard {
 public:
  /// The rows of a tensor that are owned: local rows [row_begin, row_end), the first at `offset` of
  /// the shard buffers.
  struct OwnedRows {
    std::int64_t row_begin = 0, row_end = 0, offset = 0;
  };
  /// Owned elements of one tensor in one window, one after the other.
  struct TensorRange {
    std::int64_t offset = 0, elements = 0;
    std::int64_t working_begin = 0;  ///< bytes from the start of the whole working weights
    std::int32_t tensor = 0;
    DType type = DType::float32;  ///< of the working weights
  };
  /// A bucket's cuts, counted from the bucket's own begin, and where the owned part lies in the
  /// shard buffers.
  struct Bucket {
    std::vector<std::int64_t> bounds;              ///< elements, size + 1
    std::vector<std::int64_t> working_bounds;      ///< bytes of the working weights, size + 1
    std::int64_t begin = 0, end = 0;               ///< elements of the shard buffers
    std::size_t range_begin = 0, range_end = 0;    ///< of runs()
    std::size_t window_begin = 0, window_end = 0;  ///< of windows(): where its rows lie
    std::int64_t elements() const { return end - begin; }
  };
  struct Window {
    std::int64_t begin = 0, end = 0;             ///< elements of the shard buffers
    std::size_t row_begin = 0, row_end = 0;      ///< of rows()
    std::size_t range_begin = 0, range_end = 0;  ///< of runs()
    std::int64_t elements() const { return end - begin; }
  };
  ParameterShard() = default;
  /// `window_elements`: of a window at most, where rows are no longer than that; 0: one window is
  /// everything.
  ParameterShard(const ParameterList& list, const FlatLayout& layout, int rank, int size,
                 std::int64_t max_window_elements = 0);

  /// Of a shard buffer.
  std::int64_t elements() const { return elements_; }
  const OwnedRows& owned_rows(ParameterId id) const {
    return owned_rows_[static_cast<std::size_t>(id.index)];
  }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// In the order of the shard buffers, which they fill.
  const std::vector<Window>& windows() const { return windows_; }
  std::int64_t largest_window_elements() const;
  const std::vector<TensorRange>& tensor_ranges() const { return tensor_ranges_; }
  /// The owned atoms in flat order.
  const std::vector<ops::FlatRow>& rows() const { return rows_; }
  /// A window's rows in pieces of at most `chunk_elements` that each lie in one tensor; they know
  /// their place in the whole working weights.
  std::vector<ops::FlatChunk> chunks(const Window& window,
                                     std::int64_t chunk_elements = 16384) const;

 private:
  std::vector<OwnedRows> owned_rows_;
  std::vector<TensorRange> tensor_ranges_;
  std::vector<Bucket> buckets_;
  std::vector<Window> windows_;
  std::vector<ops::FlatRow> rows_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme::parallel
