// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/ops/update/update.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::parallel {

/// The rows of one tensor in a flat buffer, at which it may be cut unless it stays whole. They are
/// adjacent and of one length, so a few numbers describe them; a large model has millions.
struct RowRun {
  std::int64_t offset = 0;        ///< of the first row, in elements
  std::int64_t row_elements = 0;  ///< of each row
  std::int64_t rows = 0;
  std::int32_t tensor = 0;
  bool whole = false;  ///< Atom::tensor
  std::int64_t begin_of(std::int64_t row) const { return offset + row * row_elements; }
  /// Returns the number of rows that begin in front of `position`.
  std::int64_t rows_before(std::int64_t position) const {
    return std::clamp<std::int64_t>((position - offset + row_elements - 1) / row_elements, 0, rows);
  }
};

/// Returns the rows one by one, as kernels read them.
std::vector<ops::FlatRow> make_rows(std::span<const RowRun> runs);

/// The positions of all parameters in the flat buffers of a rank (weights, gradients, optimizer
/// state).
///
/// - Blocks are in the order in which backward finishes them (last block first), so the first
///   bucket can be reduced first. Tied tensors are last, because they receive gradients until the
///   end of backward.
/// - Every tensor is contiguous and starts at a multiple of 16 elements; gaps are zero. A joined
///   tensor follows its predecessor without a gap.
/// - Within a bucket, running statistics follow all weights.
/// - Frozen tensors are behind all others, in buckets of their own. So gradients and optimizer
/// state
///   are the first part of a flat buffer: trained_elements().
///
/// A second layout describes the working weights, which ops read. It has the same order and counts
/// bytes: each tensor has its own type and starts at a multiple of 64 bytes. With compute type
/// float32 both layouts agree.
class FlatLayout {
 public:
  /// The position of one tensor.
  struct FlatTensor {
    std::int64_t offset = 0;  ///< elements from the start of the flat buffer
    std::int64_t elements = 0;
    std::int64_t working_begin = 0;  ///< bytes from the start of the working weights
    /// Type of the working weight: the compute type if matrix products read the tensor in it,
    /// otherwise float32.
    DType type = DType::float32;
    int block = 0, bucket = 0;
  };
  /// A range of the flat buffer that is reduced and gathered as a whole. Its gradients are complete
  /// after backward of `ready_block`.
  struct Bucket {
    std::int64_t begin = 0, end = 0;  ///< elements
    /// Start of the running statistics; equals `end` if the bucket has none.
    std::int64_t statistics_begin = 0;
    std::int64_t working_begin = 0, working_end = 0;  ///< bytes
    int ready_block = 0;
    /// `begin` and `end` if all split tensors were divided evenly over the tensor group. Cuts are
    /// chosen by such positions, so that a whole tensor has the same owner on all its ranks.
    std::int64_t even_begin = 0, even_end = 0;
    bool tied = false;    ///< contains exactly one tied tensor
    bool frozen = false;  ///< contains only frozen tensors, which have no gradients
    std::int64_t elements() const { return end - begin; }
    std::int64_t working_bytes() const { return working_end - working_begin; }
  };

  FlatLayout() = default;
  /// Computes the layout of all parameters in `list`.
  ///
  /// - `compute`: type of the working weights that have a compute copy: float32, bfloat16, float16.
  /// - `target`: the device whose products read the working weights.
  /// - `bucket_bytes`: a bucket ends with the first block at which it reaches this size (float32).
  /// - `chunk_begins`: first block of each pipeline chunk of this rank. A bucket also ends at the
  ///   boundary of a chunk, because chunks run backward at different times.
  ///
  /// A tied tensor has a bucket of its own, which is ready with the block of its owner.
  FlatLayout(const ParameterList& list, std::int64_t bucket_bytes, DType compute,
             std::span<const int> chunk_begins = {}, DeviceKind target = DeviceKind::cpu);

  std::int64_t elements() const { return elements_; }
  /// Returns the size of the part in front of the frozen tensors.
  std::int64_t trained_elements() const { return trained_elements_; }
  std::int64_t working_bytes() const { return working_bytes_; }
  DType compute_type() const { return compute_; }
  const FlatTensor& tensor(ParameterId id) const {
    return tensors_[static_cast<std::size_t>(id.index)];
  }
  const std::vector<FlatTensor>& tensors() const { return tensors_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Returns the number of buckets in front of those of frozen tensors.
  std::size_t trained_buckets() const { return trained_buckets_; }
  /// Returns the bucket of the parameters of a block, tied and frozen ones excluded; -1 if the
  /// block has none on this rank.
  int bucket_of(int block) const { return at_block(bucket_of_, block); }
  /// The same for the frozen parameters of a block.
  int frozen_bucket_of(int block) const { return at_block(frozen_bucket_of_, block); }
  /// Returns all rows in flat order, the units at which buffers may be cut: one run for each
  /// tensor that has elements on this rank.
  const std::vector<RowRun>& runs() const { return row_runs_; }
  /// Divides all buckets into `shards` parts at row boundaries, as evenly as the rows allow.
  /// Returns shards + 1 offsets in elements for each bucket.
  ///
  /// A row is a small part of a bucket, but a whole tensor (Atom::tensor) is a large one. If there
  /// are such, a bucket is divided so that the parts of all buckets up to it are even: a shard that
  /// owns a large tensor of one bucket gets less of the next ones.
  std::vector<std::vector<std::int64_t>> shard_bounds(int shards) const;
  /// Returns the shard that owns the row that begins at `position`. `bounds`: of its bucket,
  /// counted from where the position counts.
  static std::size_t owner_of(const std::vector<std::int64_t>& bounds, std::int64_t position);
  /// Returns the cuts of one bucket in the working weights, in bytes. `bounds`: its element of
  /// shard_bounds().
  std::vector<std::int64_t> working_bounds(const Bucket& bucket,
                                           std::vector<std::int64_t> bounds) const;

 private:
  static int at_block(const std::vector<int>& buckets, int block) {
    const auto index = static_cast<std::size_t>(block);
    return index < buckets.size() ? buckets[index] : -1;
  }
  /// A place where a bucket is cut, and its position if all split tensors were divided evenly. The
  /// latter is the same on all ranks of a tensor group.
  struct Cut {
    std::int64_t offset, even;
  };
  Cut closest_cut(const Bucket& bucket, std::int64_t even_position) const;
  void close_buckets(const ParameterList& list, std::span<const std::size_t> order,
                     std::int64_t bucket_bytes, std::span<const int> chunk_begins);

  std::vector<FlatTensor> tensors_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_, frozen_bucket_of_;
  /// The position of a run if all split tensors were divided evenly.
  struct EvenRun {
    std::int64_t begin = 0, elements = 0;
  };
  std::vector<RowRun> row_runs_;
  std::vector<EvenRun> even_runs_;  ///< by run
  bool has_whole_tensors_ = false;  ///< of Atom::tensor
  std::int64_t elements_ = 0, trained_elements_ = 0, working_bytes_ = 0;
  std::size_t trained_buckets_ = 0;
  DType compute_ = DType::float32;
};

}  // namespace trireme::parallel
