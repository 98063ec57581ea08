#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/ops/update.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// What a step did.
struct StepOutcome {
  bool applied = true;      ///< false: loss or gradient not finite; weights, slots and updates did not move
  double grad_norm = 0;     ///< 2-norm over all weights before clipping, statistics left out
};

/// The optimizer on flat buffers: slots, norms by rows, the judgement, one fused pass over everything (running statistics included).
class Optimizer {
 public:
  struct Slot {
    std::string name;  ///< in the checkpoint: momentum | exp_avg | exp_avg_sq
    Tensor flat;       ///< float32, as long as the flat buffers; starts at 0
  };
  /// Memory for the slots comes from `state`.
  Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store, Arena& state);

  /// One update from the store's flat gradient (the sum over the whole step) at learning rate `rate`. `loss_finite`: the step's loss was.
  StepOutcome step(ops::Context& context, double rate, bool loss_finite);

  const std::vector<Slot>& slots() const { return slots_; }
  /// Updates really applied (the t of bias correction); kept in a checkpoint.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  OptimizerOptions options_;
  parallel::ParameterStore& store_;
  std::vector<Slot> slots_;
  std::vector<ops::FlatChunk> chunks_;
  std::vector<ops::TensorRates> rates_;
  std::vector<double> row_sums_;
  std::vector<double> weight_squares_, gradient_squares_;
  std::int64_t updates_ = 0;
};

}  // namespace trireme::optim
