#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::parallel {

/// Adds the gradients of a step: over this rank's micro-batches as backward makes them, and over the data-parallel group bucket by bucket
/// while earlier blocks still compute.
///
/// Two orders. Plain: one buffer; the first micro-batch writes, later ones add; buckets are reduced as the library likes.
/// Deterministic: every micro-batch writes to a buffer of its own level of the tree (TreeWalk), partial sums are added lower + upper,
/// and ranks by pairwise exchange: the same bits at every power-of-two data degree.
///
/// Used as: begin_step, then for each micro-batch begin_micro_batch, block_done for each block from last to first; then finish.
class GradientReducer {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  ///< of this rank a step (the accumulation)
    bool deterministic = false;
  };
  /// Further gradient buffers (deterministic: the levels of the tree, the partner's part) are taken from `gradients`.
  GradientReducer(ParameterStore& store, const comm::Communicator& data_group, comm::Engine& engine, const Options& options, Arena& gradients);

  void begin_step();
  /// Directs the store's gradient() to where this micro-batch writes; returns how it writes.
  ops::Write begin_micro_batch(std::int64_t micro_batch);
  /// Backward of this block is done in the current micro-batch.
  void block_done(ops::Context& context, int block);
  /// Waits for the reductions; then store.flat_gradient() is the sum over the whole step. Returns the seconds it stood still.
  double finish(ops::Context& context);

 private:
  void merge_levels(ops::Context& context, const FlatLayout::Bucket& bucket, int merges);
  ParameterStore& store_;
  comm::Communicator group_;
  comm::Engine& engine_;
  Options options_;
  std::vector<Tensor> levels_;  ///< deterministic: partial sums, a stack; plain: one
  Tensor exchange_;             ///< deterministic with several ranks: the partner's part
  std::vector<comm::Engine::Ticket> tickets_;
  std::int64_t micro_batch_ = 0;
  int top_ = 0, buckets_done_ = 0;
};

}  // namespace trireme::parallel
