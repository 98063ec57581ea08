// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/checkpoint/state_copy.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/periodic_average.hpp"
#include "trireme/train/step/replica_resources.hpp"

namespace trireme::train {

/// The weights of a rank and everything that changes them: the reduction of gradients between data
/// ranks, the optimizer, and averages.
///
/// PipelineStage reads the weights and writes the gradients. StepPipeline calls, once per step:
///
///   begin_step()  ... backward passes ...  finish_measurement()  finish_gradients()
///   begin_update()  start_gather()  end_update()
class WeightUpdate {
 public:
  /// Allocates weights, gradients and optimizer state. `state_copy` is the copier of background
  /// checkpoints, which may still read the state. It and `resources` outlive this.
  WeightUpdate(const ReplicaResources& resources, checkpoint::StateCopy& state_copy);
  // PipelineStage keeps references to the store and the reducer.
  WeightUpdate(const WeightUpdate&) = delete;
  WeightUpdate& operator=(const WeightUpdate&) = delete;

  /// Fills the weights with their initial values and starts the weight average from them.
  /// Collective over data ranks if weights are sharded.
  void initialize(std::uint64_t seed);
  /// Starts a step: its gradients use the loss scale that the host knows now. `measures_noise`: as
  /// `measures` of GradientReducer::begin_step().
  void begin_step(bool measures_noise);
  /// Calls GradientReducer::finish_measurement(), after the last backward.
  const double* finish_measurement() { return reducer_.finish_measurement(resources_.context); }
  /// Calls GradientReducer::finish(): waits for the gradient that the update applies.
  parallel::GradientReducer::ReducedGradient finish_gradients(bool finite = true) {
    return reducer_.finish(resources_.context, finite);
  }
  /// Calls Optimizer::begin_update() with the finished gradient.
  void begin_update(const optim::StepRates& rates, const optim::StepLoss& loss,
                    bool measures = false) {
    optimizer_.begin_update(resources_.context, rates, loss, measures);
  }
  optim::StepOutcome end_update() { return optimizer_.end_update(); }
  /// Starts to gather the updated weights of other ranks' parts.
  void start_gather() { store_.start_gather(resources_.context); }
  /// Lets the working weights follow weights that were read from a file.
  void refresh_working() { store_.refresh_working(resources_.context); }
  /// Waits for gradients under way (sync delayed). Then the state may be read or replaced.
  /// Collective.
  void complete_pending() { reducer_.complete_pending(resources_.context); }
  /// Returns whether each replica applies the gradient of its own samples until the replicas are
  /// averaged (sync periodic).
  bool is_periodic() const { return average_.has_value(); }
  /// Sets the common weights of periodic averaging to the current ones. Does nothing otherwise.
  void anchor_replicas();
  /// Averages the replicas (sync periodic), which continue with the smallest number of updates and
  /// the smallest loss scale: one may have dropped a step that others applied. Collective.
  void average_replicas();
  /// Swaps weights and running statistics with their averages, bit for bit; the working weights
  /// follow. Between two calls the average is evaluated.
  ///
  /// Waits for all communication. Collective over data ranks. Does nothing without `optimizer.ema`.
  void swap_ema();

  parallel::ParameterStore& store() { return store_; }
  parallel::GradientReducer& reducer() { return reducer_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  /// Returns null unless is_periodic().
  parallel::PeriodicAverage* average() { return average_ ? &*average_ : nullptr; }
  /// Returns the state beside the weights that a checkpoint holds: of the optimizer, of periodic
  /// averaging, and a pending gradient, whose sums must be complete.
  parallel::StateList state() const {
    parallel::StateList list;
    optimizer_.add_state(list);
    if (average_) average_->add_state(list);
    reducer_.add_state(list);
    return list;
  }
  /// Returns the number of data ranks whose gradients and statistics are summed in each step.
  int gradient_ranks() const { return gradient_group_.size(); }

 private:
  const ReplicaResources& resources_;
  checkpoint::StateCopy& state_copy_;
  comm::Communicator gradient_group_;
  parallel::ParameterStore store_;
  parallel::GradientReducer reducer_;
  optim::Optimizer optimizer_;
  std::optional<parallel::PeriodicAverage> average_;
};

}  // namespace trireme::train
