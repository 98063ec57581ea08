#pragma once

#include <cstdint>

#include "trireme/base/duration.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {

/// The learning rate as a pure function of the step.
///
/// Step s counts from 1, the warm-up takes W steps, the schedule T in all (W included), peak = rate
/// * f(global / base_batch):
///   s <= W            peak * s / W
///   cosine, s > W     peak * (min_ratio + (1 - min_ratio) * (1 + cos(pi * (s - W - 1) / (T - W)))
///   / 2)
/// so the last step of the warm-up and the first after it have the peak, and past T the rate stays
/// at min_ratio * peak. That is PyTorch's CosineAnnealingLR(optimizer, T_max = T - W, eta_min =
/// min_ratio * peak) stepped once after each optimizer step (Loshchilov & Hutter 2017, equation 5,
/// without restarts).
class Schedule {
 public:
  /// `total_steps`: the schedule's length (run.stop, or schedule.length where stop is a time).
  /// Throws InputError naming the key where the warm-up is longer than the run, or is a time.
  Schedule(const ScheduleOptions& options, std::int64_t global_batch, std::int64_t total_steps,
           const StepScale& scale);
  /// Of step `step`, counted from 1.
  double rate(std::int64_t step) const;
  double peak() const { return peak_; }

 private:
  ScheduleKind kind_;
  double peak_ = 0, min_ratio_ = 0;
  std::int64_t warmup_steps_ = 0, total_steps_ = 0;
};

}  // namespace trireme::optim
