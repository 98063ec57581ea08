// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/update/update.hpp"
#include "trireme/parallel/flat_layout.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::parallel {

/// The kind of sharding, and the data group over which state is sharded.
struct Sharding {
  ShardKind kind = ShardKind::none;
  comm::Communicator data;         ///< the data-parallel group
  comm::Engine* engine = nullptr;  ///< gathers weights; null without sharding
  /// Maximum elements (or one row) copied from host memory at a time; 0: all state is in device
  /// memory.
  std::int64_t max_window_elements = 0;
  int rank() const { return data.rank(); }
  int size() const { return data.size(); }
};

/// The part of a flat layout that one rank of the data group owns: its parts of all buckets,
/// concatenated in shard buffers (float32). A group of one owns everything, and its shard buffers
/// are the flat buffers.
///
/// Shard buffers are processed window by window. Without offload one window covers everything;
/// otherwise a window is a range of rows of one bucket that is copied to the device as a whole.
/// Offsets of tensor ranges, rows and chunks count from the start of their window.
class ParameterShard {
 public:
  /// The owned local rows [row_begin, row_end) of a tensor; the first is at `offset` of the shard
  /// buffers.
  struct OwnedRows {
    std::int64_t row_begin = 0, row_end = 0, offset = 0;
  };
  /// Owned elements of one tensor in one window; contiguous.
  struct TensorRange {
    std::int64_t offset = 0, elements = 0;
    std::int64_t row_elements = 0;   ///< of each row; the range consists of whole rows
    std::int64_t working_begin = 0;  ///< bytes from the start of the whole working weights
    std::int32_t tensor = 0;
    DType type = DType::float32;  ///< of the working weights
  };
  /// The cuts of a bucket between the ranks, from the start of the bucket, and the position of the
  /// owned part in the shard buffers.
  struct Bucket {
    std::vector<std::int64_t> bounds;              ///< elements, size + 1
    std::vector<std::int64_t> working_bounds;      ///< bytes of the working weights, size + 1
    std::int64_t begin = 0, end = 0;               ///< elements of the shard buffers
    std::size_t range_begin = 0, range_end = 0;    ///< in tensor_ranges()
    std::size_t window_begin = 0, window_end = 0;  ///< in windows()
    std::int64_t elements() const { return end - begin; }
  };
  /// A range of the shard buffers that is processed at a time.
  struct Window {
    std::int64_t begin = 0, end = 0;             ///< elements of the shard buffers
    std::size_t row_begin = 0, row_end = 0;      ///< in make_rows()
    std::size_t range_begin = 0, range_end = 0;  ///< in tensor_ranges()
    std::int64_t elements() const { return end - begin; }
  };
  static constexpr std::int64_t kernel_chunk_elements = 16384;

  ParameterShard() = default;
  /// Computes the part of rank `rank` of `size`. `max_window_elements`: limit for a window,
  /// exceeded only by longer rows; 0: one window.
  ParameterShard(const ParameterList& list, const FlatLayout& layout, int rank, int size,
                 std::int64_t max_window_elements = 0);

  /// Returns the size of a shard buffer.
  std::int64_t elements() const { return elements_; }
  /// Returns the size of its first part, in front of frozen tensors: that of a shard buffer for
  /// gradients or optimizer state.
  std::int64_t trained_elements() const { return trained_elements_; }
  const OwnedRows& owned_rows(ParameterId id) const {
    return owned_rows_[static_cast<std::size_t>(id.index)];
  }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Returns the windows in the order of the shard buffers, which they cover without gaps.
  const std::vector<Window>& windows() const { return windows_; }
  /// Returns the windows of the first part, which they cover without gaps.
  std::span<const Window> trained_windows() const { return {windows_.data(), trained_windows_}; }
  /// Returns the size of the largest window in elements.
  std::int64_t largest_window_elements() const { return largest_elements(windows_); }
  /// Returns the size of the largest of these windows in elements.
  static std::int64_t largest_elements(std::span<const Window> windows);
  const std::vector<TensorRange>& tensor_ranges() const { return tensor_ranges_; }
  /// Returns the number of owned rows.
  std::size_t row_count() const { return windows_.back().row_end; }
  /// Returns the owned rows in flat order, as kernels read them. A large model has millions.
  std::vector<ops::FlatRow> make_rows() const;
  /// Divides a window into pieces of at most `chunk_elements`, each within one tensor. Kernels
  /// process one piece a thread block; a piece also contains its position in the whole working
  /// weights.
  std::vector<ops::FlatChunk> chunks(const Window& window,
                                     std::int64_t chunk_elements = kernel_chunk_elements) const;
  /// Returns the number of these pieces in a range of a window.
  static std::int64_t chunk_count(const TensorRange& range,
                                  std::int64_t chunk_elements = kernel_chunk_elements) {
    return (range.elements + chunk_elements - 1) / chunk_elements;
  }

 private:
  std::vector<OwnedRows> owned_rows_;
  std::vector<TensorRange> tensor_ranges_;
  std::vector<Bucket> buckets_;
  std::vector<Window> windows_;
  std::int64_t elements_ = 0, trained_elements_ = 0;
  std::size_t trained_windows_ = 0;
};

}  // namespace trireme::parallel
