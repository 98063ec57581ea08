// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/broken_rule.hpp"
#include "trireme/base/duration.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {

/// Returns f(global / base), by which the scaling multiplies the rate: 1, the ratio, or its square
/// root. Both batches are positive.
double rate_scale(RateScaling scaling, std::int64_t global_batch, std::int64_t base_batch);

// Rules of [schedule] that the deck checks as far as it can before it knows the dataset, and
// Schedule completely. They return none if the rule holds.

/// Returns why an interval of the schedule (every, period) cannot be used with batch.ramp. The
/// callers put the key in front.
std::optional<std::string> broken_ramp_rule(const Duration& interval);
/// Returns the broken rule that the warm-up is not longer than the whole schedule. `length`,
/// `total`: both in the same unit, of any kind. The texts describe the warm-up, the schedule, and
/// the longest warm-up.
std::optional<BrokenRule> broken_warmup_rule(const std::string& warmup, double length, double total,
                                             const std::string& whole, const std::string& most);

/// The state of kind = "plateau" between evaluations. Checkpoints hold it.
struct PlateauState {
  std::string metric;          ///< the metric of `best`
  std::optional<double> best;  ///< best value so far; none before the first evaluation
  std::int64_t bad_evaluations = 0, cooldown_left = 0, reductions = 0;
  /// Forgets the best value, which later ones cannot be compared with. The reductions stay.
  void forget_best() {
    best.reset();
    bad_evaluations = 0;
  }
  bool operator==(const PlateauState&) const = default;
};

/// Counts one evaluation, whose metric had this value. Returns whether it reduced the rate.
///
/// The rules are those of PyTorch's ReduceLROnPlateau with threshold_mode = "rel": a value is an
/// improvement if it is below best - threshold |best|, for metrics that are better if they are
/// higher above best + threshold |best|. (PyTorch has no |...|, so there a worse value can improve
/// on a negative one.) More than `patience` evaluations in a row without an improvement reduce the
/// rate. The next `cooldown` evaluations are then not counted as bad. A value that is not finite is
/// no improvement.
bool count_evaluation(const PlateauOptions& options, double value, PlateauState& state);

/// Returns the reductions after so many evaluations of which none improves on the first one.
std::int64_t reductions_without_improvement(const PlateauOptions& options,
                                            std::int64_t evaluations);

/// The learning rate as a pure function of the step, and of the evaluations for kind = "plateau".
///
/// Steps s count from 1. The warm-up has W steps, the schedule T steps (W included). The peak rate
/// is rate * f(global / base_batch). A warm-up step has
///
///   peak * (start_ratio + (1 - start_ratio) * s / W)
///
/// and a later one peak * r, where n = s - W - 1 steps lie between it and the warm-up:
///
///   constant      r = 1
///   cosine        r = min_ratio + (1 - min_ratio) * (1 + cos(pi * n / (T - W))) / 2
///   polynomial    r = min_ratio + (1 - min_ratio) * (1 - n / (T - W))^power
///   restarts      as cosine, in periods of P, P * factor, P * factor^2, ... steps
///   step          r = gamma^(number of milestones that are at most s - 1)
///   exponential   r = gamma^(n / every)
///   plateau       r = max(min_ratio, factor^(number of reductions))
///   one-cycle     from start_ratio to 1 at step peak_at * T, then to min_ratio at step T, both by
///                 half a cosine wave
///
/// The last step of the warm-up and the first step after it have the peak rate. One-cycle has no
/// warm-up: start_ratio is that of its first step. Cosine, polynomial and one-cycle stay at their
/// last value after T. docs/reference/numerics.md names the PyTorch class that each kind equals.
///
/// With a ramp of the batch, s, n, W, T, every and P count samples instead of steps, and the peak
/// rate is that of the batch of the step. So rate / peak rate has the same course over the data as
/// without a ramp.
class Schedule {
 public:
  /// `total_steps`: the length of the schedule (schedule.length, else run.stop); 0 if it has none,
  /// which only kinds without an end may have. Throws InputError with the deck's key in these
  /// cases:
  /// - A duration is a time.
  /// - An interval (every, period) is in steps although a ramp changes how many samples a step has.
  /// - The warm-up is longer than the schedule.
  /// - The milestones do not increase, or the first one lies within the warm-up.
  /// - base_batch is not positive.
  Schedule(const ScheduleOptions& options, std::int64_t global_batch, std::int64_t total_steps,
           const StepScale& scale);
  /// Returns the learning rate of step `step`, counted from 1. `reductions`: those of the plateau
  /// so far.
  double rate(std::int64_t step, std::int64_t reductions = 0) const;
  /// Returns the momentum of a step of one-cycle. It falls by half a cosine wave from the high
  /// value to the low one at the peak of the rate, and rises again.
  double momentum(std::int64_t step) const;
  /// Returns the peak rate for the batch of a step.
  double peak(std::int64_t step) const;
  /// Returns the highest peak rate of all batches.
  double peak() const;
  std::int64_t warmup_steps() const { return warmup_steps_; }

 private:
  /// Returns rate / peak rate of a step after the warm-up.
  double ratio(std::int64_t step, std::int64_t reductions) const;
  /// Returns a value at a step of one-cycle that is `start` at the first step, `peak` at the peak
  /// of the rate, and `end` at the last step.
  double cycle(std::int64_t step, double start, double peak, double end) const;
  double restarts(double done) const;
  /// Returns the position at the end of a step: the steps so far, or with a ramp the samples.
  std::int64_t position_after(std::int64_t step) const;
  /// Converts an interval of [schedule] to steps, or with a ramp to samples.
  std::int64_t length_of_key(const char* key, const Duration& duration) const;

  ScheduleOptions options_;
  StepScale scale_;
  std::int64_t global_batch_ = 0;
  std::int64_t warmup_steps_ = 0, total_steps_ = 0;
  std::vector<std::int64_t> milestones_;  ///< in steps, increasing
  std::int64_t every_ = 0, period_ = 0;   ///< in units of position_after()
};

}  // namespace trireme::optim
