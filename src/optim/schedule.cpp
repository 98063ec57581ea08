// SPDX-License-Identifier: Apache-2.0
//
// The schedules of the deck: learning rate and momentum of each step. train asks for both before it
// begins a step, and counts evaluations for kind = "plateau".

#include "trireme/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/answer.hpp"
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

std::optional<std::string> broken_ramp_rule(const Duration& interval) {
  if (interval.unit != Duration::Unit::steps) return std::nullopt;
  return fmt::format(
      "\"{}\" has no fixed number of samples, because batch.ramp changes those of a step; use "
      "epochs or samples",
      to_string(interval));
}

std::optional<BrokenRule> broken_warmup_rule(const std::string& warmup, double length, double total,
                                             const std::string& whole, const std::string& most) {
  if (length <= total) return std::nullopt;
  return BrokenRule{"schedule.warmup",
                    fmt::format("{} is longer than the {}; use {} or less", warmup, whole, most)};
}

bool count_evaluation(const PlateauOptions& options, double value, PlateauState& state) {
  const bool higher = evaluation_metric(options.metric).is_better_if_higher;
  const double margin = state.best ? options.threshold * std::abs(*state.best) : 0;
  const bool improves =
      std::isfinite(value) &&
      (!state.best || (higher ? value > *state.best + margin : value < *state.best - margin));
  state.metric = options.metric;
  if (improves) {
    state.best = value;
    state.bad_evaluations = 0;
  } else {
    ++state.bad_evaluations;
  }
  if (state.cooldown_left > 0) {
    --state.cooldown_left;
    state.bad_evaluations = 0;
  }
  if (state.bad_evaluations <= options.patience) return false;
  ++state.reductions;
  state.cooldown_left = options.cooldown;
  state.bad_evaluations = 0;
  return true;
}

std::int64_t reductions_without_improvement(const PlateauOptions& options,
                                            std::int64_t evaluations) {
  // The first evaluation is the best one. Each reduction but the first also waits for the cooldown.
  // The deck has no upper limit for patience and cooldown, so a sum of them may overflow.
  const std::int64_t bad = evaluations - 1;
  if (bad <= options.patience) return 0;
  if (options.cooldown >= bad) return 1;
  const std::int64_t needed = options.patience + 1;
  return 1 + (bad - needed) / (options.cooldown + needed);
}

namespace {

/// Converts a duration of [schedule] to steps. Throws InputError with its key, also for a time.
std::int64_t schedule_steps(const char* key, const Duration& duration, const StepScale& scale) {
  validate(!duration.is_time(),
           "schedule.{} = \"{}\" is a time, and a learning rate must not depend on how fast the "
           "machine is; use epochs, steps or samples",
           key, to_string(duration));
  return steps_of_key(std::string("schedule.") + key, duration, scale);
}

std::int64_t steps_of_warmup(const ScheduleOptions& options, std::int64_t total_steps,
                             const StepScale& scale) {
  if (!options.warmup) return 0;
  const std::int64_t steps = schedule_steps("warmup", *options.warmup, scale);
  if (total_steps == 0) return steps;
  const std::string given = fmt::format("\"{}\"", to_string(*options.warmup)),
                    of_steps = counted(steps, "step", "steps"),
                    all = counted(total_steps, "step", "steps");
  const auto broken = broken_warmup_rule(
      options.warmup->unit == Duration::Unit::steps ? given : given + " = " + of_steps,
      static_cast<double>(steps), static_cast<double>(total_steps),
      fmt::format("schedule of {} (run.stop or schedule.length), so the full rate would never be "
                  "reached",
                  all),
      fmt::format("\"{}\"", all));
  if (broken) throw InputError(fmt::format("{} = {}", broken->key, broken->message));
  return steps;
}

/// Converts the milestones to steps. Throws InputError unless they increase and follow the warm-up.
std::vector<std::int64_t> steps_of_milestones(const ScheduleOptions& options, std::int64_t warmup,
                                              const StepScale& scale) {
  std::vector<std::int64_t> steps;
  for (const Duration& milestone : options.milestones) {
    const std::int64_t at = schedule_steps("milestones", milestone, scale);
    validate(at > warmup,
             "schedule.milestones: \"{}\" is step {}, within the warm-up of {}; milestones count "
             "from the start of the run, so use a later one or a shorter warmup",
             to_string(milestone), at, counted(warmup, "step", "steps"));
    validate(steps.empty() || at > steps.back(),
             "schedule.milestones: \"{}\" is step {}, not after the milestone before it, at step "
             "{}; list them in increasing order",
             to_string(milestone), at, steps.empty() ? 0 : steps.back());
    steps.push_back(at);
  }
  return steps;
}

/// Returns the point x in [0, 1] of half a cosine wave from `start` to `end`.
double cosine_arm(double start, double end, double x) {
  return end + (start - end) * 0.5 * (1 + std::cos(std::numbers::pi * x));
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options, std::int64_t global_batch,
                   std::int64_t total_steps, const StepScale& scale)
    : options_(options),
      scale_(scale),
      global_batch_(global_batch),
      warmup_steps_(steps_of_warmup(options, total_steps, scale)),
      total_steps_(total_steps) {
  TRIREME_EXPECT(total_steps > 0 || !options.has_end());
  validate(options.base_batch > 0,
           "schedule.base_batch = {} is not a positive number of samples; use 1 or more",
           options.base_batch);
  milestones_ = steps_of_milestones(options, warmup_steps_, scale);
  if (options.every) every_ = length_of_key("every", *options.every);
  if (options.kind == ScheduleKind::step && options.every)
    validate(every_ > position_after(warmup_steps_),
             "schedule.every = \"{}\" is within the warm-up of {}; it counts from the start of "
             "the run, so use a longer one or a shorter warmup",
             to_string(*options.every), counted(warmup_steps_, "step", "steps"));
  if (options.kind == ScheduleKind::restarts) period_ = length_of_key("period", options.period);
}

std::int64_t Schedule::position_after(std::int64_t step) const {
  return scale_.rows.empty() ? step : scale_.samples_after(step);
}

std::int64_t Schedule::length_of_key(const char* key, const Duration& duration) const {
  if (scale_.rows.empty()) return schedule_steps(key, duration, scale_);
  const std::optional<std::string> broken = broken_ramp_rule(duration);
  validate(!broken, "schedule.{} = {}", key, broken.value_or(""));
  StepScale samples = scale_;
  samples.rows.clear();
  samples.samples_per_step = 1;
  return schedule_steps(key, duration, samples);
}

double Schedule::peak(std::int64_t step) const {
  const std::int64_t batch = scale_.rows.empty() ? global_batch_ : scale_.samples_of(step);
  return options_.rate * rate_scale(options_.scaling, batch, options_.base_batch);
}

double Schedule::peak() const {
  double highest = peak(1);
  for (const StepRow& row : scale_.rows) highest = std::max(highest, peak(row.first_step));
  return highest;
}

double Schedule::rate(std::int64_t step, std::int64_t reductions) const {
  const double highest = peak(step);
  if (step <= warmup_steps_) {
    const double start = options_.start_ratio;
    return highest * start + highest * (1 - start) * static_cast<double>(position_after(step)) /
                                 static_cast<double>(position_after(warmup_steps_));
  }
  return highest * ratio(step, reductions);
}

double Schedule::momentum(std::int64_t step) const {
  TRIREME_EXPECT(options_.kind == ScheduleKind::one_cycle);
  const auto [low, high] = options_.momentum_range;
  return cycle(step, high, low, high);
}

double Schedule::ratio(std::int64_t step, std::int64_t reductions) const {
  const std::int64_t begin = position_after(warmup_steps_), passed = position_after(step - 1);
  const auto done = static_cast<double>(passed - begin);
  // A run may continue after its schedule if schedule.length is set. The rate then stays at its
  // final value.
  const double progress = std::min(1.0, done / static_cast<double>(std::max<std::int64_t>(
                                                   1, position_after(total_steps_) - begin)));
  const double least = options_.min_ratio;
  switch (options_.kind) {
    case ScheduleKind::constant: return 1;
    case ScheduleKind::cosine:
      return least + (1 - least) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case ScheduleKind::polynomial:
      return least + (1 - least) * std::pow(1 - progress, options_.power);
    case ScheduleKind::restarts: return restarts(done);
    case ScheduleKind::step: {
      const std::int64_t reductions_so_far =
          every_ > 0 ? passed / every_
                     : std::upper_bound(milestones_.begin(), milestones_.end(), step - 1) -
                           milestones_.begin();
      return std::pow(options_.gamma, static_cast<double>(reductions_so_far));
    }
    case ScheduleKind::exponential:
      return std::pow(options_.gamma, done / static_cast<double>(every_));
    case ScheduleKind::plateau:
      return std::max(least, std::pow(options_.plateau.factor, static_cast<double>(reductions)));
    case ScheduleKind::one_cycle: return cycle(step, options_.start_ratio, 1, least);
  }
  return 1;
}

double Schedule::cycle(std::int64_t step, double start, double peak, double end) const {
  // As in PyTorch's OneCycleLR: counted from 0, the peak is at step peak_at * T - 1, the end at
  // step T - 1. With a ramp a step is as long as the last one.
  const auto position = static_cast<double>(position_after(std::min(step, total_steps_) - 1));
  const auto last = static_cast<double>(position_after(total_steps_ - 1));
  const auto whole = static_cast<double>(position_after(total_steps_));
  const double peak_position = options_.peak_at * whole - (whole - last);
  if (peak_position > 0 && position <= peak_position)
    return cosine_arm(start, peak, position / peak_position);
  return cosine_arm(peak, end, (position - peak_position) / (last - peak_position));
}

double Schedule::restarts(double done) const {
  const auto first = static_cast<double>(period_);
  const double factor = options_.period_factor, growth = factor - 1;
  if (growth == 0) return cosine_arm(1, options_.min_ratio, std::fmod(done, first) / first);
  // Period n begins after first + first * factor + ... = first * (factor^n - 1) / growth steps.
  // Close to 1, factor^n - 1 would lose digits; elsewhere pow() is exact for whole factors.
  const double log_factor = std::log1p(growth);
  const auto begin_of = [&](double n) {
    constexpr double small_growth = 0.01;
    const double power =
        growth < small_growth ? std::expm1(n * log_factor) : std::pow(factor, n) - 1;
    return first * power / growth;
  };
  double n = std::floor(std::log1p(done * growth / first) / log_factor);
  if (done >= begin_of(n + 1)) ++n;
  if (done < begin_of(n)) --n;
  const double length = begin_of(n + 1) - begin_of(n);
  return cosine_arm(1, options_.min_ratio, (done - begin_of(n)) / length);
}

}  // namespace trireme::optim
