// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/records/time_account.hpp"

#include <numeric>

#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"

namespace trireme::train {

using monitor::StartPart;

TimeAccount::TimeAccount() : TimeAccount(process_age_seconds()) {}

TimeAccount::TimeAccount(double age_seconds)
    : launched_(wall_seconds() - age_seconds),
      part_begin_(monotonic_seconds() - age_seconds),
      observer_([this](const char* phase) {
        if (std::this_thread::get_id() == thread_) enter(phase, monotonic_seconds());
      }) {}

void TimeAccount::enter(std::string_view phase, double now) {
  const auto part_of = [&] {
    if (phase == "mpi") return StartPart::mpi;
    if (phase == "inputs" || phase == "row") return StartPart::inputs;
    if (phase == "allocate") return StartPart::allocate;
    if (phase == "restore" || phase == "checkpoint-read") return StartPart::restore;
    if (phase == "evaluation") return StartPart::evaluate;
    if (phase == "step") return had_first_step_ ? StartPart::train : StartPart::first_step;
    if (phase == "end") return StartPart::end;
    return StartPart::checkpoint;
  };
  seconds_[static_cast<std::size_t>(part_)] += now - part_begin_;
  part_begin_ = now;
  part_ = part_of();
  // The first step of a row of batch.ramp prepares as much as that of a start.
  if (phase == "step" || phase == "row") had_first_step_ = phase == "step";
}

monitor::StartSeconds TimeAccount::seconds() const {
  monitor::StartSeconds all = seconds_;
  all[static_cast<std::size_t>(part_)] += monotonic_seconds() - part_begin_;
  return all;
}

double TimeAccount::total() const {
  const monitor::StartSeconds all = seconds();
  return std::accumulate(all.begin(), all.end(), 0.0);
}

}  // namespace trireme::train
