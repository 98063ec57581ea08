// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fault_injector.hpp"
#include "rank_reports.hpp"
#include "train/records/recorder.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_clock.hpp"
#include "trireme/train/supervision/health.hpp"
#include "watchdog.hpp"

namespace trireme::train {

/// Supervises a training run from step to step: loss health, slow ranks, equality of replicas, the
/// watchdog and injected faults.
///
/// Observes enter_phase() calls of all threads while it lives, and forwards them to the watchdog
/// and to the fault injector.
class RunSupervisor {
 public:
  /// `hosts` holds the host name of each world rank. All arguments outlive this object.
  RunSupervisor(Run& run, const RunState& state, const std::vector<std::string>& hosts,
                RankSensors& sensors, Watchdog& watchdog, FaultInjector& faults, Recorder& recorder,
                Log& log);

  /// Notes that `step` begins. Does not return once a lost rank was found.
  void begin_step(std::int64_t step);
  /// Runs `body`, which publishes a checkpoint, unless a lost rank was found (Watchdog::publish).
  void publish(const std::function<void()>& body) { watchdog_.publish(body); }
  /// Records the health of a finished step. `state` is the state after it; its `health` is updated.
  ///
  /// `row_follows`: a metrics row is due after the next step. Then the busy seconds, memory and
  /// sensors of all ranks are gathered. The next call looks for slow ranks and passes the figures
  /// to the recorder. Collective over the world.
  void end_step(RunState& state, const StepResult& result, bool row_follows);
  /// Gathers the figures of all ranks for the last account of the run. Collective over the world.
  void end_run(const RunState& state);
  Health& health() { return health_; }

  /// Returns whether health.compare_replicas asks for a comparison at the end of this step.
  bool comparison_due(std::int64_t step) const {
    return compare_every_ && compare_every_->due(step);
  }
  /// Compares the weights of all replicas. Returns a sentence that names the differing ranks and
  /// hosts; "" if all are equal or the comparison is switched off.
  ///
  /// Call it only at a step after which replicas are equal by construction. Waits for all
  /// communication. Collective over the world; the same answer on all ranks.
  std::string describe_differing_replicas();

 private:
  void on_phase(const std::string& phase);
  /// Returns the memory and the sensors of this rank.
  RankReport own_report();
  /// Waits for the posted reports and passes them on.
  void read_reports(const RunState& state);
  void report_slow_ranks(const RunState& state, std::span<const RankReport> reports);
  std::string describe_rank(int rank) const;

  Run& run_;
  const std::vector<std::string>& hosts_;
  RankSensors& sensors_;
  Watchdog& watchdog_;
  Recorder& recorder_;
  Log& log_;
  Health health_;
  BusyWindow busy_;
  RankReports reports_;
  /// Slow ranks of the last report: a rank is logged only when it is new.
  std::vector<int> last_slow_ranks_;
  std::optional<Interval> compare_every_;
  /// The current step, and the step of the checkpoint that is being written.
  std::atomic<std::int64_t> step_, checkpoint_step_;
  const std::thread::id main_thread_ = std::this_thread::get_id();
  FaultInjector& faults_;
  // Declared last: its destructor must run before the members that on_phase() uses are gone.
  PhaseObserver phase_observer_;
};

}  // namespace trireme::train
