// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "heartbeat_monitor.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/comm/environment.hpp"

namespace trireme::train {

/// Detects lost ranks with one thread per rank that exchanges heartbeats with rank 0 over UDP
/// (docs/design/decisions: 0010). If a rank is lost, the job ends with exit code 77.
///
/// The thread also prints a report of its rank after SIGUSR2 (report_signal.hpp), without MPI and
/// without the main thread. It does so too if the watchdog is switched off.
///
///   rank k > 0    heartbeat -> rank 0, every period (at most 1 s)
///   rank 0        answers each heartbeat with its own
///   every thread  find_lost_rank() after each message or period: rank 0 checks all, others rank 0
///   finder        from here on no step begins and no checkpoint is published on this rank
///   finder        writes log, exit.json and event row
///   rank 0        asks up to 8 ranks for their outstanding requests, for at most 0.5 s; logs them
///   finder        rank 0 sends "exit" to all; MPI_Abort
///   other ranks   on "exit": wait 2 s for MPI_Abort, then _exit(77)
///   end of run    the destructor sends "farewell", so that this rank is not reported as lost
class Watchdog {
 public:
  struct Options {
    std::string run_folder, start_time;  ///< For the exit record.
    /// Smallest deadline; scaled up if ranks and threads share cores. None: no heartbeats, and no
    /// rank is lost.
    std::optional<double> min_deadline_seconds = 120;
    /// Returns whether this job may still write into the run folder. Any thread calls it.
    std::function<bool()> may_write = [] { return true; };
  };
  /// Starts the thread. Collective. Called after install_report_signal(). The arguments outlive
  /// this object.
  Watchdog(const Options& options, comm::Environment& environment, const comm::Engine& engine,
           Log& log);
  /// Stops the thread and announces the normal end of this rank to the others.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The main thread enters a phase (a word without spaces), possibly the same one again.
  void enter_phase(const std::string& phase, std::int64_t step);
  /// From now on a step has this many times the work, so its deadline is that many times longer.
  void scale_steps(double factor);
  /// Notes that a step begins. Does not return once a lost rank was found.
  void begin_step(std::int64_t step);
  /// Returns at once, or never if a lost rank was found: the thread of this object ends the process
  /// within seconds, and only it writes the end of the job. Any thread.
  void wait_if_lost() const;
  /// Runs `body`, which publishes a checkpoint, unless a lost rank was found (wait_if_lost). A loss
  /// that is found meanwhile is reported after `body` returns, or after 2 s. Any thread.
  void publish(const std::function<void()>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::train
