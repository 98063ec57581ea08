// SPDX-License-Identifier: Apache-2.0
//
// Repetition intervals, and the time left until the end of the job.
#include "trireme/train/run/run_clock.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/train/run/job_time.hpp"

namespace trireme::train {

Interval::Interval(const Duration& every, const StepScale& scale) {
  if (every.is_time()) {
    seconds_ = every.value;
  } else if (every.unit == Duration::Unit::steps) {
    length_ = every.value;
  } else if (scale.rows.empty()) {
    length_ = samples_of(every, scale) / static_cast<double>(scale.samples_per_step);
  } else {
    length_ = samples_of(every, scale);
    scale_ = scale;
  }
}

std::int64_t Interval::passed(std::int64_t step) const {
  if (length_ <= 0) return 0;
  const std::int64_t position = scale_ ? scale_->samples_after(step) : step;
  // The small addition compensates for rounding of the divisions here and in the constructor.
  return static_cast<std::int64_t>(std::floor(static_cast<double>(position) / length_ + 1e-9));
}

bool Interval::due(std::int64_t step) const { return passed(step) > passed(step - 1); }

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
