#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {

/// Adds the gradients of a step: over this rank's micro-batches as backward makes them, over the
/// tensor group where each rank sees a part, and over the data-parallel group bucket by bucket
/// while earlier blocks still compute. What is reduced ends in the store's flat_gradient().
///
/// Two orders. Plain: the first micro-batch writes, later ones add; buckets are reduced as the
/// library likes. Deterministic: every micro-batch writes to a buffer of its own level of the tree
/// (TreeWalk), partial sums are added lower + upper, and ranks by pairwise exchange: the same bits
/// at every power-of-two data degree, and at every kind of sharding.
///
/// Two ways of holding what backward writes. Whole: flat buffers (one; deterministic: one a level
/// of the tree), reduced after a bucket's last micro-batch. In turn, kinds gradients and
/// parameters: two buffers of a bucket's size (tied buckets: one of their own), reduced after every
/// micro-batch and added to the own shard. Deterministic accumulation needs the tree's levels, so
/// it holds them whole at any kind.
///
/// Delayed: a step's sums go on while the next step computes, into memory of their own (two sets,
/// taken by turns), and finish() hands on those of the step before. What is added, and in which
/// order, stays the same.
///
/// On the wire bfloat16 what the data ranks send each other of gradients is rounded to it;
/// statistics, and what tensor ranks and a pipeline's ends add, stay float32. A bucket is two
/// requests then: of its weights, and of the statistics behind them.
///
/// Used as: begin_step; for each backward of a micro-batch through a chunk of blocks
/// begin_backward, then for each of its blocks from last to first block_begins, block_done; then
/// finish. Chunks may be taken in any order; all ranks of the groups do the same in the same order.
class GradientReducer {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  ///< of this rank a step (the accumulation)
    bool deterministic = false;
    bool delayed = false;
    comm::TransferType transfer_type =
        comm::TransferType::float32;  ///< between data ranks; a group of one rounds nothing
  };
  /// Who adds to what.
  struct Groups {
    /// Delayed: nobody else's group: sums are under way while others ask for theirs.
    comm::Communicator data;
    comm::Communicator
        tied_group;  ///< the first and the last stage, where tied tensors have a copy on both
    const TensorGroup* tensor = nullptr;  ///< outlives the reducer; null: a group of one
  };
  /// Further gradient buffers are taken from `gradients`.
  GradientReducer(ParameterStore& store, const Groups& groups, comm::Engine& engine,
                  const Options& options, Arena& gradients);

  /// `scale`: what the loss is multiplied by before its gradients are taken.
  void begin_step(double scale = 1);
  /// That of the step under way.
  double scale() const { return scale_; }
  /// Backward of a micro-batch through the chunk of blocks [first_block, end_block) begins. Returns
  /// how it writes its gradients.
  ops::Write begin_backward(ops::Context& context, int first_block, int end_block);
  /// From here on the store's gradient() of this block's parameters is where this micro-batch
  /// writes.
  void block_begins(ops::Context& context, int block);
  /// Backward of this block is done in the current micro-batch.
  void block_done(ops::Context& context, int block);
  /// What finish() hands on.
  struct ReducedGradient {
    bool exists =
        true;  ///< false: delayed, and no step was made before this one: nothing is to be applied
    bool finite = true;  ///< what the finish() of the step that made it was told
    double scale = 1;    ///< what its begin_step() was told
  };
  /// Waits for the reductions; then store.flat_gradient() is the sum over the whole step; delayed:
  /// over the step before. `finite`: the loss of the step now made was.
  ReducedGradient finish(ops::Context& context, bool finite = true);

  /// Delayed: waits for what is still under way; then pending_gradient() is what the next finish()
  /// hands on. Else there is nothing of the kind. Collective over all groups.
  void complete_pending(ops::Context& context);
  /// Delayed: the next finish() hands on a sum; else always {false, true}.
  ReducedGradient pending() const {
    return options_.delayed ? step_sums_[current_sum_].description : ReducedGradient{false, true};
  }
  /// In the layout of the store's owned().
  const Tensor& pending_gradient() const { return step_sums_[current_sum_].reduced; }
  /// Delayed: the next finish() hands on this, as if an earlier step had made it; its elements are
  /// read into pending_gradient() before then (a restart). Nothing is under way.
  void set_pending(const ReducedGradient& sum);

 private:
  struct ElementRange {
    std::int64_t begin = 0, end = 0;
  };
  /// What of a bucket travels in one type: one stands behind the other, either may be empty.
  struct TypedRange {
    comm::TransferType transfer_type = comm::TransferType::float32;
    ElementRange range;                ///< from the bucket's begin
    std::vector<std::int64_t> bounds;  ///< of the data ranks' shards in it, likewise
    ElementRange own;                  ///< of this rank's part of the bucket
  };
  /// What is kept of a bucket during a step.
  struct BucketState {
    std::int64_t micro_batches_done = 0;  ///< micro-batches
    int top_level = 0;                    ///< whole: the level that the next micro-batch writes
    std::size_t buffer = 0;               ///< in turn: where the current micro-batch writes
    std::vector<ElementRange> partial_ranges;  ///< neighbouring tensors whose gradient is summed
                                               ///< over the tensor group, from the bucket's begin
    std::array<TypedRange, 2> typed_ranges;
  };
  using Requests = std::array<comm::Engine::Request, 2>;  ///< of a bucket's pieces
  /// The memory of one step's sum, and how far it is.
  struct StepSum {
    Tensor level0;  ///< whole: level 0
    Tensor
        reduced;  ///< the result, in the layout of the store's owned(); kind none: level 0 itself
    std::vector<Requests> requests;  ///< whole: by bucket
    bool under_way = false;
    ReducedGradient description{.exists = false};
  };
  /// A buffer that buckets take in turn, and the reduction that is made of it.
  struct BucketBuffer {
    Tensor data, scratch, result;
    int bucket = -1;           ///< being reduced; -1: free
    std::size_t step_sum = 0;  ///< of which step: index into sums_
    bool adds_result = false;  ///< the result is added to the own shard; else it was written there
    Requests requests{};
  };
  void find_partial_ranges();
  void split_by_type();
  Tensor allocate_scratch(Arena& gradients, std::int64_t elements) const;
  /// Adds a bucket's `data` over the data group: in place at kind none, else the own shard into
  /// `result`.
  Requests reduce(int bucket, const Tensor& data, const Tensor& scratch, const Tensor& result);
  void wait(const Requests& requests);
  void allocate_levels(Arena& gradients);
  void allocate_bucket_buffers(Arena& gradients);
  void assign_buffer(ops::Context& context, int bucket);
  void bucket_done(ops::Context& context, int bucket);
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
  bool sends_bfloat16_;                     ///< gradients travel as bfloat16
  std::vector<BucketState> bucket_states_;  ///< by bucket
  std::vector<StepSum> step_sums_;          ///< one; delayed: two
  std::size_t current_sum_ = 0;             ///< that of the step under way, or made last
  double scale_ = 1;                        ///< of the step under way, or made last
  std::vector<Tensor> levels_;  ///< whole, deterministic: partial sums above level 0, a stack
  Tensor scratch_;              ///< whole, deterministic, several ranks: the partner's part
  std::vector<BucketBuffer> bucket_buffers_;  ///< in turn: two, then one a tied bucket
  std::size_t next_buffer_ = 0;               ///< the lane that the next bucket takes
  int open_bucket_ = -1;                      ///< in turn: the bucket that backward writes now
};

}  // namespace trireme::parallel
