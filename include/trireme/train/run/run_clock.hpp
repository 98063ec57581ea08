// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/duration.hpp"
#include "trireme/deck/options.hpp"

namespace trireme::train {

/// A repetition interval: a number of steps, samples or epochs (a pure function of the step), or a
/// number of seconds.
class Interval {
 public:
  Interval(const Duration& every, const StepScale& scale);
  bool is_time() const { return seconds_ > 0; }
  /// Returns whether the interval is due at the end of step `step` (from 1). Always false for
  /// times.
  bool due(std::int64_t step) const;
  /// Returns how many intervals end at or before the end of step `step`. Always 0 for times.
  std::int64_t passed(std::int64_t step) const;
  /// For times: returns whether `seconds` since the last repetition reach the interval.
  bool has_elapsed(double seconds) const { return is_time() && seconds >= seconds_; }

 private:
  double seconds_ = 0;
  /// In steps, or in samples if a ramp changes how many a step takes. May be a fraction: due at the
  /// first step at or past each multiple.
  double length_ = 0;
  std::optional<StepScale> scale_;  ///< Converts steps if the length is in samples.
};

/// Tells how much time is left until the end of the job, less run.walltime_margin.
///
/// The end comes from run.walltime, or with walltime = "auto" from the batch system (Slurm, PBS,
/// LSF, Flux). Only world rank 0 has a clock with an end.
class RunClock {
 public:
  /// Creates a clock without an end.
  RunClock();
  explicit RunClock(const deck::RunOptions& options);
  /// Returns the seconds since the clock was created.
  double since_start() const;
  /// Returns whether the run must stop now: the longest step, a checkpoint and the margin may no
  /// longer fit before the end.
  bool must_stop(double longest_step_seconds, double checkpoint_seconds) const;
  /// Returns the seconds until the end; nothing without an end.
  std::optional<double> seconds_left() const;
  /// Returns the source of the end for the log: "Slurm job 17", "run.walltime", "none".
  const std::string& source() const { return source_; }
  /// Returns the title of the batch job if its end time is unknown; "" if there is an end or no
  /// job.
  const std::string& job_without_end() const { return job_without_end_; }

 private:
  double start_seconds_, margin_ = 0;
  std::optional<double> end_seconds_;  ///< On the clock of monotonic_seconds().
  std::string source_ = "none", job_without_end_;
};

}  // namespace trireme::train
