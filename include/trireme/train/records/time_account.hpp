// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>
#include <thread>

#include "trireme/base/phase.hpp"
#include "trireme/monitor/run_account.hpp"

namespace trireme::train {

/// Adds up where a start spends its time, from the beginning of its process.
///
/// Follows enter_phase() of the thread that made it. That thread is in one part at any time, so the
/// parts add up to the whole.
///
///   launch | mpi | inputs | allocate | restore | first step | train | checkpoint | train ... | end
///
/// With batch.ramp a row begins with inputs again. Belongs to one thread.
class TimeAccount {
 public:
  TimeAccount();

  /// Returns when the process began, in seconds since 1970-01-01 UTC.
  double launched() const { return launched_; }
  /// Returns the seconds of each part up to now.
  monitor::StartSeconds seconds() const;
  /// Returns their sum: the seconds since the process began.
  double total() const;
  /// The thread enters a phase of enter_phase() at `now`, of monotonic_seconds(). For the observer,
  /// and for tests.
  void enter(std::string_view phase, double now);

 private:
  explicit TimeAccount(double age_seconds);
  monitor::StartSeconds seconds_{};
  monitor::StartPart part_ = monitor::StartPart::launch;
  bool had_first_step_ = false;
  double launched_, part_begin_;
  std::thread::id thread_ = std::this_thread::get_id();
  PhaseObserver observer_;  // Last: it uses the members before.
};

}  // namespace trireme::train
