#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/train/options.hpp"
#include "trireme/train/step_pipeline.hpp"

namespace trireme::train {

/// What health remembers of a run; kept in its checkpoints.
struct HealthState {
  double mean_sum = 0;           ///< 0.98 mean_sum + 0.02 loss, over applied steps
  std::int64_t applied = 0;      ///< steps in it
  double previous_mean_sum = 0;  ///< both as they stood before the last step
  std::int64_t previous_applied = 0;
  std::int64_t consecutive_dropped = 0;  ///< not applied, up to the last step
  std::int64_t nonfinite = 0, spikes = 0, warnings = 0, rollbacks = 0;
  bool operator==(const HealthState&) const = default;
};

/// Looks at each step's loss and gradient norm: every rank the same numbers, so every rank comes to
/// the same end.
class Health {
 public:
  /// One row of metrics.jsonl; `says`: whether the log has a line of it too.
  struct Event {
    std::string event, detail;
    bool is_logged = true;
  };

  explicit Health(const HealthOptions& options, const HealthState& state = {})
      : options_(options), state_(state) {}
  /// A loss above this is not to be applied: spike_ratio times the running mean, once 100 steps
  /// were applied; infinity before.
  double loss_limit() const { return limit_for(state_.mean_sum, state_.applied); }
  /// The same before the last step. Steps that overlap go by it, whether the last one was ended
  /// early or not: so a run that was stopped there has the same bits.
  double previous_loss_limit() const {
    return limit_for(state_.previous_mean_sum, state_.previous_applied);
  }
  /// The exponential mean (0.98) of the losses of applied steps, with the bias of its first steps
  /// taken out as Adam does; 0 before the first.
  double mean() const;
  /// After each step: what is worth telling of it.
  std::vector<Event> observe(const StepResult& result);

  /// Whether the last steps, not one of them applied, are more than skipping can repair.
  bool needs_rollback() const {
    return state_.consecutive_dropped >= (options_.skip_nonfinite ? options_.rollback_after : 1);
  }
  /// Whether this run may be rolled back once more.
  bool may_roll_back() const {
    return options_.skip_nonfinite && state_.rollbacks < options_.rollbacks;
  }
  /// The run stands where `then` was: its running mean is taken, and what was counted since stays
  /// counted.
  void rolled_back(const HealthState& then);

  const HealthState& state() const { return state_; }

 private:
  double limit_for(double mean_sum, std::int64_t applied) const;
  HealthOptions options_;
  HealthState state_;
  bool norm_was_large_ = false, loss_was_spike_ = false;
};

/// Times of each rank of some steps: finds a rank that keeps the others of its stage waiting, in
/// more than one step and by so much that it matters.
class SlowRankDetector {
 public:
  explicit SlowRankDetector(const parallel::MeshShape& shape)
      : shape_(shape),
        busy_seconds_(static_cast<std::size_t>(shape.ranks())),
        max_busy_seconds_(static_cast<std::size_t>(shape.ranks())) {}
  /// The busy seconds of each rank in one step, by world rank, and what the step took.
  void add(const std::vector<ops::StepStatus>& statuses, double step_seconds);
  struct SlowRank {
    int rank = 0;
    double busy_seconds = 0,
           median_seconds = 0;  ///< of a step; others: the median of the rank's stage
  };
  /// The slow ranks of the steps added since the last answer; of each rank the longest step is left
  /// out, which something else may have held up. None: one step says nothing yet, it is judged with
  /// those that follow.
  std::optional<std::vector<SlowRank>> detect();

 private:
  parallel::MeshShape shape_;
  std::vector<double> busy_seconds_, max_busy_seconds_;
  double step_seconds_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace trireme::train
