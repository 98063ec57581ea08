// Repetition intervals, and the time left until the end of the job.
#include "trireme/train/run_clock.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/train/job_time.hpp"

namespace trireme::train {

Interval::Interval(const Duration& every, const StepScale& scale) {
  const double samples_per_step = static_cast<double>(scale.samples_per_step);
  switch (every.unit) {
    case Duration::Unit::seconds: seconds_ = every.value; break;
    case Duration::Unit::steps: steps_ = every.value; break;
    case Duration::Unit::samples: steps_ = every.value / samples_per_step; break;
    case Duration::Unit::epochs:
      steps_ = every.value * static_cast<double>(scale.samples_per_epoch) / samples_per_step;
      break;
    case Duration::Unit::tokens:
      steps_ = every.value / (samples_per_step * static_cast<double>(std::max<std::int64_t>(
                                                     1, scale.tokens_per_sample)));
      break;
  }
}

/// True where the number of completed intervals grows from step - 1 to step.
bool Interval::due(std::int64_t step) const {
  if (steps_ <= 0) return false;
  // The small addition compensates for rounding of the division above.
  const auto passed = [this](std::int64_t s) {
    return std::floor(static_cast<double>(s) / steps_ + 1e-9);
  };
  return passed(step) > passed(step - 1);
}

RunClock::RunClock() : start_seconds_(monotonic_seconds()) {}

RunClock::RunClock(const deck::RunOptions& options)
    : start_seconds_(monotonic_seconds()), margin_(options.walltime_margin.value) {
  if (options.walltime) {
    end_seconds_ = start_seconds_ + options.walltime->value;
    source_ = "run.walltime";
  } else if (const std::optional<JobTime> job =
                 options.walltime_auto ? query_job_time() : std::nullopt) {
    end_seconds_ = start_seconds_ + job->seconds_left;
    source_ = job->source;
  } else if (const std::vector<BatchJob> jobs =
                 options.walltime_auto ? batch_jobs() : std::vector<BatchJob>();
             !jobs.empty()) {
    job_without_end_ = jobs.front().title();
  }
}

double RunClock::since_start() const { return monotonic_seconds() - start_seconds_; }

std::optional<double> RunClock::seconds_left() const {
  if (!end_seconds_) return std::nullopt;
  return *end_seconds_ - monotonic_seconds();
}

bool RunClock::must_stop(double longest_step_seconds, double checkpoint_seconds) const {
  const std::optional<double> seconds = seconds_left();
  return seconds && *seconds < longest_step_seconds + checkpoint_seconds + margin_;
}

}  // namespace trireme::train
