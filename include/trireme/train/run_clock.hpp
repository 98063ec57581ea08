#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/duration.hpp"
#include "trireme/train/options.hpp"

namespace trireme::train {

/// Something that repeats: every so many steps, samples or epochs (a pure function of the step), or
/// every so many seconds.
class Interval {
 public:
  Interval(const Duration& every, const StepScale& scale);
  bool is_time() const { return seconds_ > 0; }
  /// Whether it falls due at the end of step `step` (from 1). Never for times.
  bool due(std::int64_t step) const;
  /// Steps from one time to the next, maybe a fraction; 0 for times.
  double steps() const { return steps_; }
  /// For times: whether `seconds` since the last time are enough.
  bool has_elapsed(double seconds) const { return is_time() && seconds >= seconds_; }

 private:
  double seconds_ = 0;
  double steps_ = 0;  ///< may be a fraction: due at the first step at or past each multiple
};

/// The job's end: the scheduler's (walltime = "auto" inside a job of Slurm, PBS, LSF or Flux) or
/// the deck's, less the margin. Asked by world rank 0 alone.
class RunClock {
 public:
  /// A clock without an end.
  RunClock();
  explicit RunClock(const RunOptions& options);
  /// Seconds since this start.
  double since_start() const;
  /// Whether another step and a checkpoint may no longer fit before the end: the longest step, the
  /// measured checkpoint and the margin are kept free.
  bool must_stop(double longest_step_seconds, double checkpoint_seconds) const;
  /// Seconds until the end; none where there is no end.
  std::optional<double> seconds_left() const;
  /// Where the end comes from, for the log: "Slurm job 17", "run.walltime", "none".
  const std::string& source() const { return source_; }
  /// The job that should have said its end and did not, or has none; empty where there is an end,
  /// or no job.
  const std::string& job_without_end() const { return job_without_end_; }

 private:
  double start_seconds_, margin_ = 0;
  std::optional<double> end_seconds_;  ///< monotonic seconds
  std::string source_ = "none", job_without_end_;
};

}  // namespace trireme::train
