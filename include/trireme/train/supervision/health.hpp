// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/deck/options.hpp"
#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::train {

/// The part of Health that checkpoints keep.
struct HealthState {
  double mean_sum = 0;           ///< Exponential sum over applied steps: 0.98 mean_sum + 0.02 loss.
  std::int64_t applied = 0;      ///< Number of losses in `mean_sum`.
  double previous_mean_sum = 0;  ///< `mean_sum` and `applied` before the latest step.
  std::int64_t previous_applied = 0;
  /// Consecutive steps, up to the latest one, that were not applied.
  std::int64_t consecutive_dropped = 0;
  std::int64_t nonfinite = 0, spikes = 0, warnings = 0, rollbacks = 0;
  bool operator==(const HealthState&) const = default;
};

/// Watches the loss and gradient norm of each step: warns, and decides when a run must be rolled
/// back. Every rank sees the same numbers and so reaches the same decision without communication.
class Health {
 public:
  /// One event row of metrics.jsonl. `says`: a warning is written to the log too.
  struct Event {
    std::string event, detail;
    bool is_logged = true;
  };

  explicit Health(const deck::HealthOptions& options, const HealthState& state = {})
      : options_(options), state_(state) {}
  /// Returns the loss above which a step is not applied: spike_ratio times the running mean.
  /// Infinity until 100 steps were applied.
  double loss_limit() const { return limit_for(state_.mean_sum, state_.applied); }
  /// Returns loss_limit() as it was before the latest step.
  ///
  /// Overlapping steps are limited by this value, whether or not the previous step was finished
  /// early. A stopped and resumed run therefore computes the same bits as an uninterrupted one.
  double previous_loss_limit() const {
    return limit_for(state_.previous_mean_sum, state_.previous_applied);
  }
  /// Returns the exponential mean (decay 0.98) of the losses of applied steps, with Adam's bias
  /// correction for the first steps; 0 before the first.
  double mean() const;
  /// Records a finished step and returns the events to report. Called once per step.
  std::vector<Event> observe(const StepResult& result);

  /// Returns whether so many consecutive steps were dropped that the run must be rolled back or
  /// ended.
  bool needs_rollback() const {
    return state_.consecutive_dropped >= (options_.skip_nonfinite ? options_.rollback_after : 1);
  }
  /// Returns whether another rollback is allowed (health.rollbacks).
  bool may_roll_back() const {
    return options_.skip_nonfinite && state_.rollbacks < options_.rollbacks;
  }
  /// Notes a rollback to a checkpoint with the state `then`: its running mean is restored, the
  /// event counters keep their values.
  void rolled_back(const HealthState& then);

  const HealthState& state() const { return state_; }

 private:
  double limit_for(double mean_sum, std::int64_t applied) const;
  deck::HealthOptions options_;
  HealthState state_;
  /// The previous step had a large norm, or a loss spike.
  bool norm_was_large_ = false, loss_was_spike_ = false;
  bool reported_missing_labels_ = false;
};

/// The busy seconds of this rank in some steps.
class BusyWindow {
 public:
  /// Adds a step: this rank's busy seconds, and the duration of the step.
  void add(double busy_seconds, double step_seconds);
  std::int64_t steps() const { return steps_; }
  /// Returns the mean busy seconds of a step, and the mean duration of a step.
  ///
  /// The longest step is left out of the busy seconds, because an unrelated event may have caused
  /// it. So at least two steps are needed.
  double busy_seconds() const;
  double step_seconds() const;

 private:
  double busy_seconds_ = 0, max_busy_seconds_ = 0, step_seconds_ = 0;
  std::int64_t steps_ = 0;
};

struct SlowRank {
  int rank = 0;
  /// Seconds per step; median_seconds is the median of the other ranks of the stage.
  double busy_seconds = 0, median_seconds = 0;
};
/// Finds ranks that delay the other ranks of their pipeline stage by a relevant share of the step.
/// `busy_seconds` [world ranks] and `step_seconds`: as BusyWindow returns them.
std::vector<SlowRank> find_slow_ranks(const parallel::MeshShape& shape,
                                      std::span<const double> busy_seconds, double step_seconds);

}  // namespace trireme::train
