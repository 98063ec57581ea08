// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/cast_tensors.hpp"
#include "trireme/parallel/micro_batch_squares.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/state_list.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {

/// Sums the gradients of a step: over the micro-batches of this rank, over the tensor group where
/// each rank has only a part, and over the data-parallel group. Buckets are reduced while earlier
/// blocks still compute.
///
///   backward     block 3 | block 2 | block 1 | block 0 | finish(): waits
///   engine               | reduces bucket 0 (blocks 3 2) | bucket 1 ... |
///
/// Usage: begin_step(). For each backward pass of a micro-batch through a chunk: begin_backward(),
/// then from the last block to the first block_begins() and block_done(). Then finish(). All ranks
/// of the groups make the same calls in the same order; chunks may be in any order. The result is
/// the store's flat_gradient().
///
/// Order of addition:
/// - Plain: the first micro-batch writes, later ones add; ranks are added in the library's order.
/// - Deterministic: each micro-batch is a leaf of a binary tree (TreeWalk) and writes to the buffer
///   of its level. Partial sums are added lower + upper, and ranks by pairwise exchange. The bits
///   are the same at every power-of-two data degree and every kind of sharding.
///
/// Memory of the gradients that backward writes:
/// - Whole buffers (sharding none, optimizer; always with deterministic accumulation): one flat
///   buffer, or one for each level of the tree. Reduced after the last micro-batch of a bucket.
/// - Bucket buffers (sharding gradients, parameters): two buffers of one bucket, used in turn; tied
///   buckets have their own. Reduced after every micro-batch and added to the rank's own part.
///
/// Delayed: the sums of a step continue during the next step, in one of two sets of memory.
/// finish() then returns the sum of the step before. Terms and order are unchanged.
///
///   step         n              | n + 1          | n + 2
///   sums of n    start ......................... finish() of n + 1 returns them
///
/// Frozen tensors have no gradient here: their buckets take no part in any of this.
///
/// Gradients that a library writes in 16 bits are converted when their bucket is complete, all in
/// one launch. Their memory is that of the largest bucket.
///
/// With transfer type bfloat16, gradients between data ranks are rounded to bfloat16. Running
/// statistics, and sums over the tensor group and over the two copies of tied tensors, remain
/// float32. A bucket then takes two requests.
class GradientReducer {
 public:
  /// Options of measured steps, with the meaning of MicroBatchSquares::Options.
  struct Measurement {
    std::vector<char> counted;
    DeviceKind target = DeviceKind::cpu;
    int stages = 1;
  };
  struct Options {
    std::int64_t micro_batches = 1;  ///< of this rank in a step (gradient accumulation)
    bool deterministic = false;
    bool delayed = false;
    /// Between data ranks; a group of one rounds nothing.
    comm::TransferType transfer_type = comm::TransferType::float32;
    /// Steps may be measured (begin_step). Needs whole buffers, and no `delayed`.
    std::optional<Measurement> measurement = {};
  };
  /// The groups of ranks that add gradients.
  struct Groups {
    /// With `delayed`, no other request may use this group, because its sums continue during the
    /// next step.
    comm::Communicator data;
    /// The first and the last stage, if tied tensors have a copy on both.
    comm::Communicator tied_group;
    const TensorGroup* tensor = nullptr;  ///< outlives the reducer; null: a group of one
  };
  /// Allocates further gradient buffers from `gradients`. Later only gradients in 16 bits are
  /// allocated there, and freed when their bucket is complete.
  GradientReducer(ParameterStore& store, const Groups& groups, comm::Engine& engine,
                  const Options& options, Arena& gradients);

  /// Starts a step. `scale`: factor by which the loss is multiplied before backward. `measures`:
  /// the gradient of each micro-batch is measured too, which changes no bit of the sums.
  void begin_step(double scale = 1, bool measures = false);
  /// Returns the loss scale of the current step.
  double scale() const { return scale_; }
  /// Starts backward of a micro-batch through the blocks [first_block, end_block).
  /// Returns how backward must write its gradients: assign or add.
  ops::Write begin_backward(ops::Context& context, int first_block, int end_block);
  /// Sets the store's gradient() of the parameters of `block` to the memory that this micro-batch
  /// writes. Waits for an earlier reduction if it still uses this memory. Until block_done() ops
  /// may leave gradients in 16 bits.
  void block_begins(ops::Context& context, int block);
  /// Reports that backward of `block` is complete for this micro-batch. Starts the reduction of
  /// complete buckets.
  void block_done(ops::Context& context, int block);
  /// Returns whether all micro-batches of a step but the first and the last make the same calls.
  bool micro_batches_repeat() const { return !options_.deterministic && !measures_; }
  /// Counts micro-batches as done that a rehearsal leaves out, because they repeat the one before.
  void leave_out(std::int64_t micro_batches);
  /// After the last backward of a measured step: enqueues the sum of the squared norms of the
  /// gradients of this rank's micro-batches, over the weights that it counts and with the loss
  /// scale squared. Returns its address for kernels; null if the step is not measured. Collective
  /// over the tied group.
  const double* finish_measurement(ops::Context& context) {
    return measures_ ? squares_->finish(context) : nullptr;
  }
  /// Describes the sum that finish() returns.
  struct ReducedGradient {
    /// False only with `delayed`, if no earlier step exists: then nothing may be applied.
    bool exists = true;
    bool finite = true;  ///< the `finite` of the step that computed the sum
    double scale = 1;    ///< the loss scale of that step
  };
  /// Waits for the reductions. Then store.flat_gradient() is the sum of this step; with `delayed`,
  /// of the step before. `finite`: whether the loss of the current step is finite.
  ReducedGradient finish(ops::Context& context, bool finite = true);

  /// With `delayed`: waits for the sums under way, so that pending_gradient() is the sum that the
  /// next finish() will return. No effect otherwise. Collective over all groups. Called before
  /// checkpoints.
  void complete_pending(ops::Context& context);
  bool delayed() const { return options_.delayed; }
  /// Returns the description of that sum; {false, true} without `delayed`.
  ReducedGradient pending() const {
    return options_.delayed ? step_sums_[current_sum_].description : ReducedGradient{false, true};
  }
  /// Returns its elements, in the layout of the store's owned().
  const Tensor& pending_gradient() const { return step_sums_[current_sum_].reduced; }
  /// Adds a pending sum, which must be complete, to the state that a checkpoint holds.
  void add_state(StateList& list) const {
    if (pending().exists)
      list.push_back({.group = "optimizer/pending",
                      .flat = pending_gradient(),
                      .tensors = StateEntry::Tensors::trained});
  }
  /// Restores a pending sum after a restart (with `delayed`): the next finish() returns it. The
  /// caller reads its elements into pending_gradient(). No sum may be under way.
  void set_pending(const ReducedGradient& sum);

 private:
  struct ElementRange {
    std::int64_t begin = 0, end = 0;
  };
  /// The part of a bucket that is sent in one type: its weights, or its statistics. May be empty.
  struct TypedRange {
    comm::TransferType transfer_type = comm::TransferType::float32;
    ElementRange range;  ///< from the start of the bucket
    /// Cuts between the data ranks, from the start of the bucket.
    std::vector<std::int64_t> bounds;
    ElementRange own;  ///< in this rank's own part of the bucket
  };
  /// The progress of one bucket during a step.
  struct BucketState {
    std::int64_t micro_batches_done = 0;  ///< micro-batches
    int top_level = 0;                    ///< whole buffers: level that the next micro-batch writes
    std::size_t buffer = 0;               ///< bucket buffers: index of the one in use
    /// Ranges of adjacent tensors whose gradient is summed over the tensor group, from the start of
    /// the bucket.
    std::vector<ElementRange> partial_ranges;
    std::array<TypedRange, 2> typed_ranges;
  };
  /// The requests of the two typed ranges of a bucket.
  using Requests = std::array<comm::Engine::Request, 2>;
  /// The memory and the requests of the sum of one step.
  struct StepSum {
    Tensor level0;  ///< whole buffers: level 0
    /// The result in the layout of the store's owned(); without sharding it is level 0 itself.
    Tensor reduced;
    std::vector<Requests> requests;  ///< whole buffers: by bucket
    bool under_way = false;
    ReducedGradient description{.exists = false};
  };
  /// A buffer that buckets use in turn, and the reduction that reads it.
  struct BucketBuffer {
    Tensor data, scratch, result;
    int bucket = -1;           ///< being reduced; -1: free
    std::size_t step_sum = 0;  ///< index into step_sums_
    /// The result must be added to the rank's own part; otherwise it was written there directly.
    bool adds_result = false;
    Requests requests{};
  };
  void find_partial_ranges();
  void split_by_type();
  /// Returns the scratch memory of a reduction of `elements`; undefined if none is needed.
  Tensor allocate_scratch(Arena& gradients, std::int64_t elements) const;
  /// Starts the sum of a bucket over the data group: in place without sharding, otherwise this
  /// rank's part into `result`.
  Requests reduce(int bucket, const Tensor& data, const Tensor& scratch, const Tensor& result);
  void wait(const Requests& requests);
  void allocate_levels(Arena& gradients);
  void allocate_bucket_buffers(Arena& gradients);
  void assign_buffer(ops::Context& context, int bucket);
  void bucket_done(ops::Context& context, int bucket);
  Tensor own_gradient_of_micro_batch(ops::Context& context, int bucket, bool is_last);
  void merge_levels(ops::Context& context, int bucket);
  void start_whole_reduction(int bucket);
  void start_buffer_reduction(int bucket);
  void release_buffer(ops::Context& context, BucketBuffer& buffer);
  void complete(ops::Context& context, std::size_t which);
  void reduce_tied(std::size_t which);
  int buckets() const { return static_cast<int>(bucket_states_.size()); }
  const FlatLayout::Bucket& bucket_at(int bucket) const {
    return store_.layout().buckets()[static_cast<std::size_t>(bucket)];
  }
  comm::SumOrder order() const {
    return options_.deterministic ? comm::SumOrder::tree : comm::SumOrder::library;
  }
  Tensor level(int number, int bucket) const;
  Tensor own_gradient(int bucket, std::size_t which) const;

  ParameterStore& store_;
  Groups groups_;
  comm::Engine& engine_;
  Options options_;
  bool uses_whole_buffers_;
  bool sends_bfloat16_;                       ///< gradients are sent as bfloat16
  std::vector<BucketState> bucket_states_;    ///< by bucket
  std::vector<StepSum> step_sums_;            ///< one; two with `delayed`
  std::size_t current_sum_ = 0;               ///< index of the current or latest step's sum
  double scale_ = 1;                          ///< loss scale of that step
  std::vector<Tensor> levels_;                ///< deterministic: partial sums above level 0
  Tensor scratch_;                            ///< scratch of the reductions of whole buffers
  std::vector<BucketBuffer> bucket_buffers_;  ///< two, then one for each tied bucket
  std::size_t next_buffer_ = 0;               ///< index of the buffer that the next bucket takes
  int open_bucket_ = -1;                      ///< the bucket that backward writes now
  ops::NarrowGradients narrow_gradients_;     ///< of the bucket that backward writes now
  std::optional<MicroBatchSquares> squares_;  ///< with Options::measurement
  bool measures_ = false;                     ///< the current step is measured
};

}  // namespace trireme::parallel
