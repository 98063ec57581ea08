#pragma once

#include <cstdint>

#include "trireme/base/duration.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {

/// The learning rate as a pure function of the step.
class Schedule {
 public:
  /// `total_steps`: the schedule's length (run.stop, or schedule.length where stop is a time). Throws InputError naming the key where the
  /// warm-up is longer than the run.
  Schedule(const ScheduleOptions& options, std::int64_t global_batch, std::int64_t total_steps, const StepScale& scale);
  /// Of step `step`, counted from 1. Warm-up over W steps: peak * step / W; after it the schedule runs over the steps that remain.
  double rate(std::int64_t step) const;
  double peak() const { return peak_; }

 private:
  ScheduleKind kind_;
  double peak_ = 0, min_ratio_ = 0;
  std::int64_t warmup_steps_ = 0, total_steps_ = 0;
};

}  // namespace trireme::optim
