// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/flat_layout.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::parallel {

/// Sums the squared norms of the gradients of a rank's micro-batches, for the gradient noise scale.
///
/// GradientReducer calls it in the steps that are measured, once per micro-batch and bucket. All
/// sums are in double precision, over weights only; running statistics do not count.
///
///   begin backward of a micro-batch   keep(): only if backward adds to earlier micro-batches
///   its bucket is complete            own_gradient() | sum over the tensor group | add()
///   last backward of the step         finish(): the sum of all, in one double
///
/// Where backward adds in place, the gradient of a micro-batch is the difference of the sum after
/// it and before it. The difference has the rounding error of the sum: about 1e-7 of its elements.
///
/// A tied tensor with a copy on two stages is the sum of both. Its gradients are summed over both
/// stages in buffers of their own, which are used in turn while backward continues.
class MicroBatchSquares {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  ///< of this rank in a step
    bool adds_in_place = false;      ///< backward adds to the sum of earlier micro-batches
    /// By tensor: 1 if this rank counts it in norms (optim::NormScope::counted). Empty: all.
    std::vector<char> counted;
    DeviceKind target = DeviceKind::cpu;  ///< the device of the run, also on meta
    /// The first and the last stage, if tied tensors have a copy on both.
    comm::Communicator tied_group;
    int stages = 1;  ///< of the pipeline: the number of micro-batches that stages may be apart
  };
  /// Allocates its buffers and tables from `gradients`.
  MicroBatchSquares(const ParameterList& list, const FlatLayout& layout, comm::Engine& engine,
                    Options options, Arena& gradients);
  MicroBatchSquares(const MicroBatchSquares&) = delete;
  MicroBatchSquares& operator=(const MicroBatchSquares&) = delete;

  /// Copies the sum of earlier micro-batches, to which backward will add.
  void keep(ops::Context& context, int bucket, const Tensor& sum);
  /// Returns the micro-batch's own gradient of a bucket. `sum` holds it alone, or with `is_added`
  /// on top of what was kept. `copies`: the result must not be the memory of `sum`.
  Tensor own_gradient(ops::Context& context, int bucket, const Tensor& sum, bool is_added,
                      bool copies);
  /// Adds the squares of a micro-batch's own gradient of a bucket. The memory may change
  /// afterwards.
  void add(ops::Context& context, int bucket, std::int64_t micro_batch, const Tensor& gradient);
  /// Waits for tied tensors and enqueues the sum over all buckets and micro-batches. Returns the
  /// address of the result for kernels on the context's stream.
  const double* finish(ops::Context& context);

 private:
  /// A tied bucket of one micro-batch whose sum over both stages is under way.
  struct TiedSum {
    Tensor data;
    int bucket = -1;
    std::int64_t micro_batch = -1;  ///< -1: free
    comm::Engine::Request request = 0;
  };
  const FlatLayout::Bucket& bucket_at(int bucket) const {
    return layout_.buckets()[static_cast<std::size_t>(bucket)];
  }
  void measure(ops::Context& context, int bucket, std::int64_t micro_batch, const Tensor& gradient);
  void complete(ops::Context& context, TiedSum& sum);

  const FlatLayout& layout_;
  comm::Engine& engine_;
  Options options_;
  Tensor kept_;                     ///< in flat layout; undefined unless backward adds in place
  std::vector<TiedSum> tied_sums_;  ///< for each tied bucket `stages` in turn
  std::vector<std::size_t> tied_begin_;  ///< by bucket: its first tied sum
  /// [buckets + 1]: the rows of each bucket; then 0 and the number of sums.
  std::vector<std::int64_t> begins_;
  OwnedTable<const ops::FlatRow> rows_;  ///< counted rows of weights, offsets from their bucket
  DeviceTable<const std::int64_t> begins_table_;
  OwnedTable<const std::int64_t> indices_;  ///< 0, 1, 2 ...
  OwnedTable<double> row_sums_;
  OwnedTable<double> sums_;  ///< [micro-batches, buckets], then their sum
};

}  // namespace trireme::parallel
