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
  bool applied = true;      ///< false: loss, gradient or batch statistics not finite; weights, statistics, slots and updates did not move
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

  /// One update from the store's flat gradient (the sum over the whole step; equal on every replica) at learning rate `rate`.
  /// `loss_finite`: the step's loss was. Allocates nothing. Meta: counts an update that is applied, norm 0.
  StepOutcome step(ops::Context& context, double rate, bool loss_finite);

  const std::vector<Slot>& slots() const { return slots_; }
  /// Updates really applied (the t of bias correction); kept in a checkpoint.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  struct Norms {
    double gradient = 0;
    bool finite = true;
  };
  Norms measure_gradient(ops::Context& context);
  /// lars: reads the gradient's row sums that measure_gradient left.
  void set_local_rates(ops::Context& context, double clip_factor);
  void update(ops::Context& context, const ops::Judgement& judgement);

  OptimizerOptions options_;
  parallel::ParameterStore& store_;
  std::vector<Slot> slots_;
  std::vector<ops::FlatChunk> chunks_;
  std::vector<ops::TensorRates> rates_;                    ///< by tensor
  std::vector<double> row_sums_;                           ///< by row of the layout
  std::vector<double> weight_squares_, gradient_squares_;  ///< by tensor (lars)
  std::int64_t updates_ = 0;
};

}  // namespace trireme::optim
