#include "trireme/train/health.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace trireme::train {
namespace {

// docs/contract, section 7
constexpr double decay = 0.98;
constexpr std::int64_t steps_until_armed = 100;

// A slower host shows as a factor, and matters as a share of the step. What is shorter than the
// last bound is what another process may take of a core at once (the time slice of Linux' fair
// scheduler: up to 24 ms).
constexpr double slow_ratio = 1.5, least_share_of_step = 0.1, least_excess_seconds = 0.025;

bool is_armed(std::int64_t applied) { return applied >= steps_until_armed; }

double mean_of(double sum, std::int64_t applied) {
  return applied == 0 ? 0 : sum / (1 - std::pow(decay, static_cast<double>(applied)));
}

}  // namespace

double Health::mean() const { return mean_of(state_.mean_sum, state_.applied); }

double Health::limit_of(double mean_sum, std::int64_t applied) const {
  return is_armed(applied) && options_.spike_ratio > 0
             ? options_.spike_ratio * mean_of(mean_sum, applied)
             : std::numeric_limits<double>::infinity();
}

std::vector<Health::Event> Health::after(const StepResult& result) {
  std::vector<Event> events;
  const double ratio = result.loss / mean();
  const bool finite = std::isfinite(result.loss), over = finite && result.loss > loss_limit();
  const bool was_over = std::exchange(loss_was_spike_, over),
             spike = over || (finite && was_over);  // a delayed gradient is judged by the loss of
                                                    // its own step, and applied in the next
  state_.mean_sum_before = state_.mean_sum;
  state_.applied_before = state_.applied;
  if (result.overflow) {  // as often as the scale has grown: neither a bad step nor one that ends a
                          // run of them
    events.push_back({"skipped_step",
                      fmt::format("the gradient is not finite at loss scale {:.6g}: the weights "
                                  "did not move, the scale is lowered",
                                  result.loss_scale),
                      false});
    return events;
  }
  if (!result.applied) {
    ++state_.bad_in_a_row;
    ++(spike ? state_.spikes : state_.nonfinite);
    events.push_back(
        {"skipped_step",
         spike
             ? fmt::format("loss {:.6g} is {:.3g} times its running mean: the weights did not move",
                           result.loss, ratio)
             : fmt::format("loss or gradient is not finite (loss {}): the weights did not move",
                           result.loss)});
    return events;
  }
  state_.bad_in_a_row = 0;
  if (is_armed(state_.applied) && options_.spike_warn > 0 && ratio > options_.spike_warn) {
    ++state_.warnings;
    events.push_back({"loss_spike", fmt::format("loss {:.6g} is {:.3g} times its running mean",
                                                result.loss, ratio)});
  }
  const bool large = options_.grad_norm_warn > 0 && result.grad_norm > options_.grad_norm_warn;
  if (large) {
    ++state_.warnings;
    events.push_back(
        {"grad_norm",
         fmt::format("the gradient's norm {:.6g} is above health.grad_norm_warn = {:.6g}",
                     result.grad_norm, options_.grad_norm_warn),
         !norm_was_large_});
  }
  norm_was_large_ = large;
  if (!finite || over) return events;
  state_.mean_sum = decay * state_.mean_sum + (1 - decay) * result.loss;
  ++state_.applied;
  return events;
}

void Health::rolled_back(const HealthState& then) {
  state_.mean_sum = then.mean_sum;
  state_.applied = then.applied;
  state_.mean_sum_before = then.mean_sum_before;
  state_.applied_before = then.applied_before;
  state_.bad_in_a_row = 0;
  ++state_.rollbacks;
}

void SlowRanks::add(const std::vector<ops::StepStatus>& messages, double step_seconds) {
  for (std::size_t rank = 0; rank < seconds_.size(); ++rank) {
    seconds_[rank] += messages[rank].busy_seconds;
    longest_[rank] = std::max(longest_[rank], messages[rank].busy_seconds);
  }
  step_seconds_ += step_seconds;
  ++steps_;
}

std::optional<std::vector<SlowRanks::Slow>> SlowRanks::take() {
  if (steps_ < 2) return std::nullopt;
  std::vector<Slow> slow;
  const auto busy_in_a_step = [&](int rank) {
    const auto i = static_cast<std::size_t>(rank);
    return (seconds_[i] - longest_[i]) / static_cast<double>(steps_ - 1);
  };
  const double least_excess = std::max(
      least_excess_seconds, least_share_of_step * step_seconds_ / static_cast<double>(steps_));
  const int ranks_a_stage = shape_.data * shape_.tensor;
  for (int rank = 0; rank < shape_.ranks() && ranks_a_stage > 1; ++rank) {
    std::vector<double> others;
    const int first =
        rank / ranks_a_stage * ranks_a_stage;  // the stage is the outermost part of a rank's number
    for (int other = first; other < first + ranks_a_stage; ++other) {
      if (other != rank) others.push_back(busy_in_a_step(other));
    }
    std::nth_element(others.begin(), others.begin() + std::ssize(others) / 2, others.end());
    const double median = others[others.size() / 2], busy = busy_in_a_step(rank);
    if (busy > slow_ratio * median && busy - median > least_excess)
      slow.push_back({rank, busy, median});
  }
  std::fill(seconds_.begin(), seconds_.end(), 0);
  std::fill(longest_.begin(), longest_.end(), 0);
  step_seconds_ = 0;
  steps_ = 0;
  return slow;
}

}  // namespace trireme::train
