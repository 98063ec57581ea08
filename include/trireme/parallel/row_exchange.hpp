// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {

// Chunked input and output exchange of a layer whose tensor is split over the tensor group.
//
//   engine    gather 0 | gather 1  | gather 2  | ...
//   compute              product 0 | product 1 | product 2
//
// Both classes allocate from the context's workspace; call wait() before the workspace is released.

/// Gathers all rows of x, of which each rank holds a part. The constructor starts the gather of all
/// chunks. whole() is x itself if the rank already holds all rows.
class RowGather {
 public:
  /// `cut_columns`: the columns by which the rows were cut (TensorGroup::chunks()), if these are
  /// not those of x.
  RowGather(ops::Context& context, const TensorGroup& group, const Tensor& x,
            std::int64_t cut_columns = 0);
  const Tensor& whole() const { return whole_; }
  int chunks() const { return chunks_; }
  RowChunk chunk(int number) const { return group_.chunk(number, chunks_, whole_.shape[0]); }
  /// Waits for one chunk of whole().
  void wait(int number) { group_.wait(requests_[static_cast<std::size_t>(number)]); }
  void wait();

 private:
  const TensorGroup& group_;
  Tensor whole_;
  int chunks_ = 1;
  std::array<TensorGroup::Request, RowChunkLimits::max_chunks_limit> requests_{};
};

/// Sums `partial` [rows, columns] (float32; destroyed) over the group. The result contains the rows
/// that this rank holds.
class RowSum {
 public:
  /// Allocates the result in the workspace; returns `partial` itself if the rank holds all rows.
  static Tensor allocate_result(ops::Context& context, const TensorGroup& group,
                                const Tensor& partial);
  RowSum(ops::Context& context, const TensorGroup& group, const Tensor& partial,
         const Tensor& held);
  int chunks() const { return chunks_; }
  RowChunk chunk(int number) const { return group_.chunk(number, chunks_, partial_.shape[0]); }
  /// Starts the sum of one chunk, once the kernels that compute it are enqueued.
  void begin(int number);
  /// Waits until the sum of one chunk is in `held`.
  void wait(int number) { group_.wait(requests_[static_cast<std::size_t>(number)]); }
  void wait();

 private:
  const TensorGroup& group_;
  Tensor partial_, held_, scratch_;
  int chunks_ = 1;
  std::array<TensorGroup::Request, RowChunkLimits::max_chunks_limit> requests_{};
};

}  // namespace trireme::parallel
