// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/ops/update/step_decision.hpp"
#include "trireme/ops/update/update.hpp"
#include "trireme/optim/matrix_directions.hpp"
#include "trireme/optim/norms.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/optim/tensor_norms.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/state_list.hpp"

namespace trireme::optim {

/// The outcome of one update, as the log and the metrics report it.
struct StepOutcome {
  /// False: the loss, the gradient or the batch statistics were not finite, or the loss was a
  /// spike. Weights, running statistics, slots and the number of updates did not change.
  bool applied = true;
  /// 2-norm over all weights of the model before clip_norm and after clip_value, without running
  /// statistics.
  double grad_norm = 0;
  /// The step was skipped because the gradient overflowed under the loss scale, which is smaller
  /// now.
  bool overflow = false;
  /// Not applied: the last tensor of the model whose gradient is not finite, usually the first that
  /// backward reached. The number of tensors stands for running statistics, if all gradients are
  /// finite; -1: none.
  std::int32_t nonfinite_tensor = -1;
};

/// The factor of the next losses whose gradients are computed. 1 if gradients are not scaled.
struct LossScale {
  double scale = 1;
  std::int64_t good_steps = 0;  ///< steps applied since the scale last changed
  bool operator==(const LossScale&) const = default;
};

/// The loss of the step whose gradient is applied, as far as the decision to apply it depends on
/// the loss.
struct StepLoss {
  bool finite = true;  ///< as far as the host knows
  /// Loss sums in memory that kernels can read: the decision kernel checks them. Null: the host has
  /// checked the loss.
  const ops::SampleSums* sums = nullptr;
  /// Maximum of the mean of `sums`. A larger loss is a spike, and the step is skipped.
  double limit = std::numeric_limits<double>::infinity();
  double scale = 1;  ///< loss scale of the gradient; divided out before norm and clipping
  /// Labels of the step by whose number the gradient was divided, if some may not count; else 0.
  double labels = 0;
};

/// Learning rate and momentum of one update.
struct StepRates {
  double learning_rate = 0;
  std::optional<double> momentum =
      {};  ///< of rules with the key momentum; none: that of the options
};

/// Applies one update per step to the parts of the flat buffers that this rank owns, running
/// statistics included. A parameter group may have a rule of its own (optim/rule.hpp).
///
/// begin_update() enqueues all work of an update on the compute stream. end_update() waits for the
/// oldest update in flight and reports its outcome. At most two may be in flight, so that the host
/// can enqueue the next step meanwhile:
///
///   host             begin_update(n) | enqueue step n + 1               | end_update(n)
///   compute stream   step n | norms, decision, trust ratios, update | step n + 1 ...
///   copy to host                             decision -----------------> | read here
///
/// Norms, decision and trust ratios are computed where the buffers are; the host reads the decision
/// only in end_update(). Slots and master weights that are offloaded to host memory are streamed
/// through the device window by window. With `optimizer.ema` the class also keeps the moving
/// average of weights and running statistics.
class Optimizer {
 public:
  /// Takes the memory of the slots, of the average and of the tables that kernels read from
  /// `state`. `scaling`: the loss is scaled by a factor that changes with the outcome of steps.
  /// `measures_tensors`: updates may be measured. Nothing is allocated later.
  Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store,
            const NormScope& scope, const parallel::StateMemory& state,
            const std::optional<LossScaleOptions>& scaling = {}, bool measures_tensors = false);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Enqueues one update from the store's flat gradient, which holds the sum over the whole step.
  /// A rule that makes directions overwrites that gradient.
  ///
  /// Collective over the data and model groups. Allocates nothing. The host waits only for
  /// communication through host memory (comm::Engine::wait). The caller then starts the gather of
  /// the working weights of other ranks' parts (ParameterStore::start_gather). At most two updates
  /// may be in flight. `measures`: the norms of all tensors are measured too, which changes no bit
  /// of the update.
  void begin_update(ops::Context& context, const StepRates& rates, const StepLoss& loss,
                    bool measures = false);
  /// Waits for the oldest update in flight and returns its outcome. On meta it returns an applied
  /// step of norm 0.
  StepOutcome end_update();
  /// After end_update() of a measured update: returns its norms, by tensor of the whole model.
  std::vector<TensorNorm> tensor_norms() { return tensor_norms_->wait(); }
  /// Runs begin_update() and end_update(). `loss_finite`: the step's loss was finite. `scale`: the
  /// loss scale of the gradient.
  StepOutcome step(ops::Context& context, double rate, bool loss_finite, double scale = 1) {
    begin_update(context, {.learning_rate = rate}, {.finite = loss_finite, .scale = scale});
    return end_update();
  }

  /// Adds the slots of all rules, and the moving average, to the state that a checkpoint holds.
  /// Rules share buffers: each weight uses those of its rule. All start at 0.
  void add_state(parallel::StateList& list) const;
  /// Returns the buffers that are averaged where replicas train independently between
  /// synchronizations: the slots and the moving average. The average is linear in the weights, so
  /// the mean of the averages is the average of the means.
  std::vector<parallel::WindowedBuffer*> state_buffers();
  /// Returns the number of updates applied so far: the t of bias correction, without updates still
  /// in flight. The checkpoint holds it.
  std::int64_t updates() const { return updates_; }
  /// Sets the number of updates after a restart. The next decision continues from it.
  void set_updates(std::int64_t updates);
  /// Returns, for weights whose slots began later than the run, the number of updates that were
  /// applied before: their bias correction counts from there. By name, of the whole model: weights
  /// that a restart thawed.
  const std::map<std::string, std::int64_t>& updates_before() const { return updates_before_; }
  /// Sets these numbers after a restart, before the next update.
  void set_updates_before(std::map<std::string, std::int64_t> updates_before);
  bool scales_loss() const { return scaling_.growth_interval > 0; }
  const LossScale& loss_scale() const { return loss_scale_; }
  /// Sets the loss scale after a restart. Does nothing if the loss is not scaled.
  void set_loss_scale(const LossScale& scale);

  /// Returns the exponential moving average of weights and running statistics (decay
  /// `optimizer.ema`), in the layout of owned(), on the device or in host memory. Undefined if
  /// there is none. Every applied update changes it, except for frozen tensors.
  Tensor ema() const { return ema_ ? ema_->flat() : Tensor{}; }
  /// Sets the average to the current weights and running statistics. Does nothing if there is no
  /// average.
  void start_ema(ops::Context& context);
  /// The same for frozen weights only. An average that followed them until a restart froze them
  /// would otherwise never reach them.
  void start_frozen_ema(ops::Context& context);
  /// Swaps the master weights (running statistics included) with the average, window by window, bit
  /// for bit. The caller must then refresh the working weights.
  void swap_ema(ops::Context& context);

 private:
  /// A rule of the optimizer or of its groups.
  struct RuleUse {
    const UpdateRule* rule;
    std::vector<ops::TrustRatioTensor> trusted;  ///< its tensors that have a trust ratio
    parallel::DeviceTable<const ops::TrustRatioTensor> trusted_table;
  };
  /// The chunks of one rule in one window: a range of chunks_.
  struct WindowChunks {
    std::size_t begin = 0, end = 0;
    std::int64_t elements = 0, working_bytes = 0;  ///< of the window that they cover
  };
  void find_rules();
  void make_chunks(const parallel::StateMemory& state);
  /// Returns the index of a tensor's rule in rules_.
  std::size_t rule_index(const parallel::ParameterSpec& spec) const;
  /// Returns the number of slots that a rule uses.
  std::size_t slot_count(const UpdateRule& rule) const;
  bool has_trust_ratios() const;
  bool has_trust_ratios(bool of_directions) const;
  void set_trust_ratios(ops::Context& context, bool from_directions);
  void run_passes(ops::Context& context, ops::UpdatePass UpdateRule::* pass, float gradient_limit);
  float gradient_limit(const StepLoss& loss) const;
  void copy_to_ema(ops::Context& context,
                   std::span<const parallel::ParameterShard::Window> windows);
  void decide_step(ops::Context& context, const StepRates& rates, const StepLoss& loss);
  void restore_decision();

  OptimizerOptions options_;
  ops::RuleNumbers numbers_;
  ops::LossScaling scaling_;
  LossScale loss_scale_;  ///< as far as the host knows
  parallel::ParameterStore& store_;
  std::vector<RuleUse> rules_;                     ///< by TensorRates::rule; 0: the optimizer's own
  std::vector<parallel::WindowedBuffer> buffers_;  ///< by slot, for all rules
  std::optional<parallel::WindowedBuffer> ema_;
  std::vector<WindowChunks> windows_;    ///< by window and rule
  std::vector<ops::TensorRates> rates_;  ///< by tensor
  ops::StepDecision decision_;           ///< of the last step; the next decision continues from it
  parallel::OwnedTable<const ops::FlatChunk> chunks_;  ///< of all windows, one after the other
  parallel::DeviceTable<ops::TensorRates> rate_table_;
  parallel::DeviceTable<ops::StepDecision> decision_table_;
  parallel::AsyncReadback<ops::StepDecision> report_;
  SquareSums gradient_squares_;  ///< after a pass that makes directions: those of the directions
  std::optional<SquareSums> weight_squares_;  ///< for trust ratios, and if tensors are measured
  std::optional<TensorNorms> tensor_norms_;   ///< if tensors are measured
  MatrixDirections matrix_directions_;
  bool measures_ = false;     ///< the update that is being enqueued is measured
  std::int64_t updates_ = 0;  ///< as far as the host knows
  std::map<std::string, std::int64_t> updates_before_;
};

}  // namespace trireme::optim
