#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {

/// Adds the gradients of a step: over this rank's micro-batches as backward makes them, over the tensor group where each rank sees a part,
/// and over the data-parallel group bucket by bucket while earlier blocks still compute. What is reduced ends in the store's flat_gradient().
///
/// Two orders. Plain: the first micro-batch writes, later ones add; buckets are reduced as the library likes.
/// Deterministic: every micro-batch writes to a buffer of its own level of the tree (TreeWalk), partial sums are added lower + upper,
/// and ranks by pairwise exchange: the same bits at every power-of-two data degree, and at every kind of sharding.
///
/// Two ways of holding what backward writes. Whole: flat buffers (one; deterministic: one a level of the tree), reduced after a bucket's
/// last micro-batch. In turn, kinds gradients and parameters: two buffers of a bucket's size (tied buckets: one of their own), reduced
/// after every micro-batch and added to the own shard. Deterministic accumulation needs the tree's levels, so it holds them whole at any kind.
///
/// Used as: begin_step; for each backward of a micro-batch through a chunk of blocks begin_backward, then for each of its blocks from last to
/// first block_begins, block_done; then finish. Chunks may be taken in any order; all ranks of the groups do the same in the same order.
class GradientReducer {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  ///< of this rank a step (the accumulation)
    bool deterministic = false;
  };
  /// Who adds to what.
  struct Groups {
    comm::Communicator data;
    comm::Communicator ends;              ///< the first and the last stage, where tied tensors have a copy on both
    const TensorGroup* tensor = nullptr;  ///< outlives the reducer; null: a group of one
  };
  /// Further gradient buffers are taken from `gradients`.
  GradientReducer(ParameterStore& store, const Groups& groups, comm::Engine& engine, const Options& options, Arena& gradients);

  void begin_step();
  /// Backward of a micro-batch through the chunk of blocks [first_block, end_block) begins. Returns how it writes its gradients.
  ops::Write begin_backward(ops::Context& context, int first_block, int end_block);
  /// From here on the store's gradient() of this block's parameters is where this micro-batch writes.
  void block_begins(ops::Context& context, int block);
  /// Backward of this block is done in the current micro-batch.
  void block_done(ops::Context& context, int block);
  /// Waits for the reductions; then store.flat_gradient() is the sum over the whole step. Returns the seconds it stood still.
  double finish(ops::Context& context);

 private:
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  /// What is kept of a bucket during a step.
  struct State {
    std::int64_t done = 0;            ///< micro-batches
    int top = 0;                      ///< whole: the level that the next micro-batch writes
    comm::Engine::Ticket ticket = 0;  ///< whole: its reduction
    std::size_t lane = 0;             ///< in turn: where the current micro-batch writes
    std::vector<Range> partial;       ///< neighbouring tensors whose gradient is summed over the tensor group, from the bucket's begin
  };
  /// A buffer that buckets take in turn, and the reduction that is made of it.
  struct Lane {
    Tensor data, scratch, result;
    int bucket = -1;                  ///< being reduced; -1: free
    bool adds = false;                ///< the result is added to the own shard; else it was written there
    comm::Engine::Ticket ticket = 0;
  };
  void find_partial();
  void take_levels(Arena& gradients);
  void take_lanes(Arena& gradients);
  void direct_to_lane(ops::Context& context, int bucket);
  void bucket_done(ops::Context& context, int bucket);
  void merge_levels(ops::Context& context, int bucket);
  void reduce_level(int bucket);
  void reduce_lane(int bucket);
  void free_lane(ops::Context& context, Lane& lane);
  void add_ends();
  int buckets() const { return static_cast<int>(states_.size()); }
  const FlatLayout::Bucket& bucket_at(int bucket) const { return store_.layout().buckets()[static_cast<std::size_t>(bucket)]; }
  comm::SumOrder order() const { return options_.deterministic ? comm::SumOrder::tree : comm::SumOrder::library; }
  Tensor level(int number, int bucket) const;
  Tensor own_gradient(int bucket) const;

  ParameterStore& store_;
  Groups groups_;
  comm::Engine& engine_;
  Options options_;
  bool whole_;
  std::vector<State> states_;   ///< by bucket
  std::vector<Tensor> levels_;  ///< whole: deterministic: partial sums, a stack; plain: one
  Tensor exchange_;             ///< whole, deterministic, several ranks: the partner's part
  std::vector<Lane> lanes_;     ///< in turn: two, then one a tied bucket
  std::size_t turn_ = 0;        ///< the lane that the next bucket takes
  int open_ = -1;               ///< in turn: the bucket that backward writes now
};

}  // namespace trireme::parallel
