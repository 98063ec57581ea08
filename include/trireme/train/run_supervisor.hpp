#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/train/fault_injector.hpp"
#include "trireme/train/health.hpp"
#include "trireme/train/recorder.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_clock.hpp"
#include "trireme/train/watchdog.hpp"

namespace trireme::train {

/// What looks after a training run from step to step: health, slow ranks, replicas that should be
/// alike, the watchdog, faults on purpose.
class RunSupervisor {
 public:
  /// `watchdog`: null where it is off. `hosts`: of each world rank. All outlive it.
  RunSupervisor(Run& run, const RunState& state, const std::vector<std::string>& hosts,
                Watchdog* watchdog, Recorder& recorder, Log& log);

  /// This step is about to be made; the run's newest checkpoint is that of step `newest_checkpoint`
  /// (-1: there is none).
  void begin_step(std::int64_t step, std::int64_t newest_checkpoint);
  /// Looks at the step just made; `state` is that after it, and gets what health remembers. `row`:
  /// a row of metrics is due, and slow ranks are told of.
  void end_step(RunState& state, const StepResult& result,
                const std::vector<ops::StepStatus>& statuses, bool row);
  Health& health() { return health_; }

  /// Whether the replicas are to be compared at the end of this step, whatever else is due.
  bool comparison_due(std::int64_t step) const {
    return compare_every_ && compare_every_->due(step);
  }
  /// The ranks, with their hosts, whose weights are not those of the other replicas, as a sentence;
  /// "" where all are alike, and where comparing is off. At a step at whose end replicas are the
  /// same. Collective; the same answer on all ranks.
  std::string describe_differing_replicas();

 private:
  void on_phase(const std::string& phase);
  std::string describe_rank(int rank) const;

  Run& run_;
  const std::vector<std::string>& hosts_;
  Watchdog* watchdog_;
  Recorder& recorder_;
  Log& log_;
  Health health_;
  SlowRankDetector slow_ranks_;
  std::vector<int> last_slow_ranks_;
  std::optional<Interval> compare_every_;
  std::atomic<std::int64_t> step_, checkpoint_step_;
  const std::thread::id main_thread_ = std::this_thread::get_id();
  FaultInjector faults_;
  PhaseObserver phase_observer_;  // last: it calls came_by
};

}  // namespace trireme::train
