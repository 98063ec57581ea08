#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/ops/step_decision.hpp"
#include "trireme/ops/update.hpp"
#include "trireme/optim/norms.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// What a step did.
struct StepOutcome {
  bool applied = true;  ///< false: loss, gradient or batch statistics not finite; weights,
                        ///< statistics, slots and updates did not move
  double grad_norm =
      0;  ///< 2-norm over all weights of the model before clipping, statistics left out
  bool overflow = false;  ///< not applied because the gradient was seeded with too large a loss
                          ///< scale, which is smaller now
};

/// The factor of the losses whose gradients come next: 1 where gradients are not scaled.
struct LossScale {
  double scale = 1;
  std::int64_t good_steps = 0;  ///< applied since it last moved
  bool operator==(const LossScale&) const = default;
};

/// What an update is to know of the loss of the step that its gradient is of.
struct StepLoss {
  bool finite = true;  ///< as far as the host knows
  const ops::SampleSums* sums =
      nullptr;  ///< where kernels read them: judged there; null: the host has seen them
  double limit = std::numeric_limits<double>::infinity();  ///< of the mean of `sums`
  double scale = 1;  ///< that the gradient was seeded with; divided out before norm and clipping
};

/// The optimizer on flat buffers: slots, norms by rows, the judgement, fused passes over what this
/// rank owns (running statistics included), window by window where slots or master weights lie in
/// host memory; and the average of what it has made. Norms, judgement and trust ratios stay where
/// the buffers are worked on: the host gives all the work of a step, and hears of the judgement
/// when it asks.
class Optimizer {
 public:
  struct Slot {
    std::string name;  ///< in the checkpoint: momentum | exp_avg | exp_avg_sq
    Tensor flat;  ///< float32, in the layout of the store's owned(), where it lies; starts at 0
  };
  /// Memory for the slots, and for the tables that kernels read, comes from `state`. `scaling`: the
  /// loss is scaled, by factors that steps move.
  Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store,
            const NormScope& scope, const parallel::StateMemory& state,
            const std::optional<LossScaleOptions>& scaling = {});
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Gives the device one update from the store's flat gradient (the sum over the whole step; lamb
  /// overwrites it) at learning rate `rate`. Collective over data and model; the working weights of
  /// other ranks' shards come with store.publish(). Allocates nothing. Two updates at most may be
  /// under way.
  void begin_update(ops::Context& context, double rate, const StepLoss& loss);
  /// What the update begun first of all not ended has done, for which the host waits. Meta: it was
  /// applied, norm 0.
  StepOutcome end_update();
  /// Both. `loss_finite`: the step's loss was.
  StepOutcome step(ops::Context& context, double rate, bool loss_finite, double scale = 1) {
    begin_update(context, rate, {.finite = loss_finite, .scale = scale});
    return end_update();
  }

  const std::vector<Slot>& slots() const { return slots_; }
  /// What is averaged where replicas go their own ways: the slots, and the average of the weights
  /// (it is linear in them: the mean of averages is the average of means). To work on.
  std::vector<parallel::WindowedBuffer*> state_buffers();
  /// Updates really applied (the t of bias correction), as far as they are ended; kept in a
  /// checkpoint.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates);
  bool scales_loss() const { return scaling_.growth_interval > 0; }
  const LossScale& loss_scale() const { return loss_scale_; }
  void set_loss_scale(const LossScale& scale);

  /// The average of weights and running statistics over updates (exponential, decay
  /// `optimizer.ema`), like a slot in the layout of owned(), where it lies; undefined without one.
  /// Every update that is applied moves it.
  Tensor ema() const { return ema_ ? ema_->flat() : Tensor{}; }
  /// The average begins with weights and statistics as they are. Does nothing without one.
  void start_ema(ops::Context& context);
  /// The master weights (statistics) and the average change places, window by window, bit for bit;
  /// the working weights do not know of it.
  void swap_ema(ops::Context& context);

 private:
  struct PassWrites {
    bool weights = true, slots = true;
  };
  /// A window's place in chunks_.
  struct WindowChunks {
    std::size_t begin = 0, end = 0;
    std::int64_t working_bytes = 0;  ///< of the working weights
  };
  /// What an update kernel goes by, where it reads it.
  struct UpdateTables {
    const ops::FlatChunk* chunks = nullptr;
    std::int64_t chunk_count = 0;
    const ops::TensorRates* rates = nullptr;
    const ops::StepDecision* decision = nullptr;
  };
  template <class Pass>
  void for_each_window(ops::Context& context, const PassWrites& writes, Pass&& pass);
  void decide_step(ops::Context& context, double rate, const StepLoss& loss);
  void restore_decision();
  ops::TrustRatioArgs trust_arguments(ops::Context& context);
  void update(ops::Context& context);

  OptimizerOptions options_;
  ops::LossScaling scaling_;
  LossScale loss_scale_;  ///< as far as the host knows
  parallel::ParameterStore& store_;
  std::vector<Slot> slots_;
  std::vector<parallel::WindowedBuffer> buffers_;  ///< by slot
  std::optional<parallel::WindowedBuffer> ema_;
  std::vector<ops::FlatChunk> chunks_;  ///< window after window
  std::vector<WindowChunks> windows_;
  std::vector<ops::TensorRates> rates_;         ///< by tensor
  std::vector<ops::TrustRatioTensor> trusted_;  ///< lars, lamb
  ops::StepDecision decision_;                  ///< of the last step, as kernels go on from it
  parallel::DeviceTable<const ops::FlatChunk> chunk_table_;
  parallel::DeviceTable<ops::TensorRates> rate_table_;
  parallel::DeviceTable<const ops::TrustRatioTensor> trusted_table_;
  parallel::DeviceTable<ops::StepDecision> decision_table_;
  parallel::AsyncReadback<ops::StepDecision> report_;
  SquareSums gradient_squares_;               ///< lamb: in the end the directions'
  std::optional<SquareSums> weight_squares_;  ///< lars, lamb
  std::int64_t updates_ = 0;                  ///< as far as the host knows
};

}  // namespace trireme::optim
