// SPDX-License-Identifier: Apache-2.0
//
// Loss health and slow ranks. Health keeps an exponential mean of the losses (decay 0.98). It warns
// of spikes and large norms, counts dropped steps, and asks for a rollback after several in a row.
// find_slow_ranks() compares the busy seconds of each rank with the median of its stage. The run
// supervisor calls both.
#include "trireme/train/supervision/health.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"

namespace trireme::train {
namespace {

// The meaning of these numbers for users: docs/reference/numerics.md.
constexpr double decay = 0.98;
constexpr std::int64_t min_applied_steps = 100;

// A rank is slow if its busy time exceeds the median by this factor, and the excess by both bounds:
// a share of the step, and 25 ms. Another process may take a core for up to 24 ms at a time (the
// time slice of Linux' fair scheduler).
constexpr double slow_ratio = 1.5, min_share_of_step = 0.1, min_excess_seconds = 0.025;

bool is_armed(std::int64_t applied) { return applied >= min_applied_steps; }

double mean_of(double sum, std::int64_t applied) {
  return applied == 0 ? 0 : sum / (1 - std::pow(decay, static_cast<double>(applied)));
}

/// Returns the part of an event that names the last tensor whose gradient is not finite.
std::string last_nonfinite(const StepResult& result) {
  return result.nonfinite_tensor.empty() ? "" : ", in the gradient of " + result.nonfinite_tensor;
}

}  // namespace

double Health::mean() const { return mean_of(state_.mean_sum, state_.applied); }

double Health::limit_for(double mean_sum, std::int64_t applied) const {
  return is_armed(applied) && options_.spike_ratio > 0
             ? options_.spike_ratio * mean_of(mean_sum, applied)
             : std::numeric_limits<double>::infinity();
}

/// Order of decisions: overflow of the loss scale, step without labels, dropped step, warnings,
/// update of the mean.
std::vector<Health::Event> Health::observe(const StepResult& result) {
  std::vector<Event> events;
  const double ratio = result.loss / mean();
  const bool finite = std::isfinite(result.loss), over = finite && result.loss > loss_limit();
  // A delayed gradient belongs to the previous step: it is limited by that step's loss.
  const bool was_over = std::exchange(loss_was_spike_, over), spike = over || (finite && was_over);
  state_.previous_mean_sum = state_.mean_sum;
  state_.previous_applied = state_.applied;
  // An overflow follows each growth of the loss scale. It neither counts as a dropped step nor ends
  // a sequence of dropped steps.
  if (result.overflow) {
    events.push_back({"skipped_step",
                      fmt::format("the gradient is not finite at loss scale {:.6g}{}: the step is "
                                  "skipped, the loss scale is lowered",
                                  result.loss_scale, last_nonfinite(result)),
                      false});
    return events;
  }
  // Nothing can be learned from such a step, and nothing is wrong with the run.
  if (!result.has_labels) {
    events.push_back({"skipped_step",
                      "no label of its samples counts: the step is skipped; later steps of this "
                      "kind are skipped without a line in the log",
                      !std::exchange(reported_missing_labels_, true)});
    return events;
  }
  if (!result.applied) {
    ++state_.consecutive_dropped;
    ++(spike ? state_.spikes : state_.nonfinite);
    events.push_back(
        {"skipped_step",
         spike ? fmt::format("loss {:.6g} is {:.3g} times its running mean: the step is skipped",
                             result.loss, ratio)
               : fmt::format("loss or gradient is not finite (loss {}{}): the step is skipped",
                             result.loss, last_nonfinite(result))});
    return events;
  }
  state_.consecutive_dropped = 0;
  if (is_armed(state_.applied) && options_.spike_warn > 0 && ratio > options_.spike_warn) {
    ++state_.warnings;
    events.push_back({"loss_spike", fmt::format("loss {:.6g} is {:.3g} times its running mean",
                                                result.loss, ratio)});
  }
  const bool norm_is_large =
      options_.grad_norm_warn > 0 && result.grad_norm > options_.grad_norm_warn;
  if (norm_is_large) {
    ++state_.warnings;
    events.push_back(
        {"grad_norm",
         fmt::format("the gradient's norm {:.6g} is above health.grad_norm_warn = {:.6g}",
                     result.grad_norm, options_.grad_norm_warn),
         !norm_was_large_});
  }
  norm_was_large_ = norm_is_large;
  // Only the loss of a healthy step enters the mean.
  if (!finite || over) return events;
  state_.mean_sum = decay * state_.mean_sum + (1 - decay) * result.loss;
  ++state_.applied;
  return events;
}

void Health::rolled_back(const HealthState& then) {
  state_.mean_sum = then.mean_sum;
  state_.applied = then.applied;
  state_.previous_mean_sum = then.previous_mean_sum;
  state_.previous_applied = then.previous_applied;
  state_.consecutive_dropped = 0;
  ++state_.rollbacks;
}

void BusyWindow::add(double busy_seconds, double step_seconds) {
  busy_seconds_ += busy_seconds;
  max_busy_seconds_ = std::max(max_busy_seconds_, busy_seconds);
  step_seconds_ += step_seconds;
  ++steps_;
}

double BusyWindow::busy_seconds() const {
  TRIREME_EXPECT(steps_ > 1);
  return (busy_seconds_ - max_busy_seconds_) / static_cast<double>(steps_ - 1);
}

double BusyWindow::step_seconds() const {
  TRIREME_EXPECT(steps_ > 0);
  return step_seconds_ / static_cast<double>(steps_);
}

std::vector<SlowRank> find_slow_ranks(const parallel::MeshShape& shape,
                                      std::span<const double> busy_seconds, double step_seconds) {
  TRIREME_EXPECT(std::ssize(busy_seconds) == shape.ranks());
  std::vector<SlowRank> slow;
  const double min_excess = std::max(min_excess_seconds, min_share_of_step * step_seconds);
  const int ranks_per_stage = shape.data * shape.tensor;
  if (ranks_per_stage == 1) return slow;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    // The stage is the slowest index of a world rank.
    const auto first = static_cast<std::size_t>(rank / ranks_per_stage * ranks_per_stage),
               mine = static_cast<std::size_t>(rank);
    std::vector<double> others;
    for (std::size_t other = first; other < first + static_cast<std::size_t>(ranks_per_stage);
         ++other) {
      if (other != mine) others.push_back(busy_seconds[other]);
    }
    std::nth_element(others.begin(), others.begin() + std::ssize(others) / 2, others.end());
    const double median = others[others.size() / 2], busy = busy_seconds[mine];
    if (busy > slow_ratio * median && busy - median > min_excess)
      slow.push_back({rank, busy, median});
  }
  return slow;
}

}  // namespace trireme::train
