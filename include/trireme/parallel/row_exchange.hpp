#pragma once

#include <array>

#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {

// What goes into a layer whose tensor is split, and what comes out of it, chunk by chunk: while one
// is under way the product of another is made. Both take room from the context's workspace and must
// have been waited for before it is given back.

/// All rows of x, of which each rank of the group holds its part; they come from the start of its
/// life on. Where the rank holds all, x itself.
class RowGather {
 public:
  RowGather(ops::Context& context, const TensorGroup& group, const Tensor& x);
  const Tensor& whole() const { return whole_; }
  int chunks() const { return chunks_; }
  RowChunk chunk(int number) const { return group_.chunk(number, chunks_, whole_.shape[0]); }
  /// Until this chunk of whole() is there.
  void wait(int number) { group_.wait(requests_[static_cast<std::size_t>(number)]); }
  void wait();

 private:
  const TensorGroup& group_;
  Tensor whole_;
  int chunks_ = 1;
  std::array<TensorGroup::Request, RowChunkLimits::max_chunks_limit> requests_{};
};

/// The sum over the group of `partial` [rows, columns] (float32; destroyed), the rows that this
/// rank holds.
class RowSum {
 public:
  /// Room for the sum, in the workspace: partial itself where the rank holds all rows.
  static Tensor allocate_result(ops::Context& context, const TensorGroup& group,
                                const Tensor& partial);
  RowSum(ops::Context& context, const TensorGroup& group, const Tensor& partial,
         const Tensor& held);
  int chunks() const { return chunks_; }
  RowChunk chunk(int number) const { return group_.chunk(number, chunks_, partial_.shape[0]); }
  /// This chunk of `partial` has been made.
  void begin(int number);
  /// Until the sum of this chunk stands in `held`.
  void wait(int number) { group_.wait(requests_[static_cast<std::size_t>(number)]); }
  void wait();

 private:
  const TensorGroup& group_;
  Tensor partial_, held_, scratch_;
  int chunks_ = 1;
  std::array<TensorGroup::Request, RowChunkLimits::max_chunks_limit> requests_{};
};

}  // namespace trireme::parallel
