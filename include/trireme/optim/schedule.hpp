#pragma once

#include <cstdint>

#include "trireme/base/duration.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {

/// Returns f(global / base), by which the scaling multiplies the rate: 1, the ratio, or its square
/// root. Both batches are positive.
double rate_scale(RateScaling scaling, std::int64_t global_batch, std::int64_t base_batch);

/// The learning rate as a pure function of the step.
///
/// Steps s count from 1. The warm-up has W steps, the schedule T steps (W included), and peak =
/// rate * f(global / base_batch):
///
///   s <= W            peak * s / W
///   cosine, s > W     peak * (min_ratio + (1 - min_ratio) * (1 + cos(pi * x)) / 2)
///                     with x = (s - W - 1) / (T - W)
///
/// The last step of the warm-up and the first step after it have the peak rate. After T the rate
/// stays at min_ratio * peak. This is PyTorch's CosineAnnealingLR(optimizer, T_max = T - W, eta_min
/// = min_ratio * peak), stepped once after each optimizer step (Loshchilov & Hutter 2017, equation
/// 5, without restarts).
class Schedule {
 public:
  /// `total_steps`: the schedule's length (run.stop, or schedule.length if stop is a time). Throws
  /// InputError with the deck's key if the warm-up is a time or longer than the schedule, or if
  /// base_batch is not positive.
  Schedule(const ScheduleOptions& options, std::int64_t global_batch, std::int64_t total_steps,
           const StepScale& scale);
  /// Returns the learning rate of step `step`, counted from 1.
  double rate(std::int64_t step) const;
  double peak() const { return peak_; }

 private:
  ScheduleKind kind_;
  double peak_ = 0, min_ratio_ = 0;
  std::int64_t warmup_steps_ = 0, total_steps_ = 0;
};

}  // namespace trireme::optim
