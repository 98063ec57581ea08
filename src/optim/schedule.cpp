// The learning rate schedule of the deck: warm-up, then constant or cosine. train asks for the rate
// of each step.

#include "trireme/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::optim {

double rate_scale(RateScaling scaling, std::int64_t global_batch, std::int64_t base_batch) {
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(base_batch);
  switch (scaling) {
    case RateScaling::none: return 1;
    case RateScaling::linear: return ratio;
    case RateScaling::sqrt: return std::sqrt(ratio);
  }
  return 1;
}

namespace {

std::int64_t warmup_steps(const ScheduleOptions& options, std::int64_t total_steps,
                          const StepScale& scale) {
  if (!options.warmup) return 0;
  validate(
      !options.warmup->is_time(),
      "schedule.warmup = \"{}\" is a time, and a learning rate must not depend on how fast the "
      "machine is; use epochs, steps or samples",
      to_string(*options.warmup));
  const std::int64_t steps = steps_of(*options.warmup, scale);
  validate(steps <= total_steps,
           "schedule.warmup = \"{}\" is {}, longer than the whole schedule of {} (run.stop "
           "or schedule.length): the full rate would never "
           "be reached; use \"{}\" or less",
           to_string(*options.warmup), counted(steps, "step", "steps"), total_steps,
           counted(total_steps, "step", "steps"));
  return steps;
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options, std::int64_t global_batch,
                   std::int64_t total_steps, const StepScale& scale)
    : kind_(options.kind),
      min_ratio_(options.min_ratio),
      warmup_steps_(warmup_steps(options, total_steps, scale)),
      total_steps_(total_steps) {
  validate(options.base_batch > 0,
           "schedule.base_batch = {} is not a positive number of samples; use 1 or more",
           options.base_batch);
  peak_ = options.rate * rate_scale(options.scaling, global_batch, options.base_batch);
}

double Schedule::rate(std::int64_t step) const {
  if (step <= warmup_steps_)
    return peak_ * static_cast<double>(step) / static_cast<double>(warmup_steps_);
  if (kind_ == ScheduleKind::constant) return peak_;
  // A run may continue after its schedule if schedule.length is set. The rate then stays at its
  // final value.
  const auto length = static_cast<double>(std::max<std::int64_t>(1, total_steps_ - warmup_steps_));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps_ - 1) / length);
  return peak_ *
         (min_ratio_ + (1 - min_ratio_) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

}  // namespace trireme::optim
