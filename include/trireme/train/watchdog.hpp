#pragma once

#include <memory>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/train/heartbeat_monitor.hpp"

namespace trireme::train {

/// A thread of each rank that gives signs of life to rank 0's over UDP and hears rank 0's in turn
/// (docs/decisions: 0010). Rank 0 judges all ranks, itself included, and the others judge rank 0.
/// Where one is lost, who finds it says so in the log, in an event row and in exit.json, and the
/// job ends with code 77.
class Watchdog {
 public:
  struct Options {
    std::string run_folder, start_time;  ///< of the exit record
    double min_deadline_seconds = 120;   ///< deadline; grows with the ranks and threads on a core
  };
  /// Collective. The arguments outlive it.
  Watchdog(const Options& options, comm::Environment& environment, const comm::Engine& engine,
           Log& log);
  /// Says farewell.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The main thread comes by a phase (a word without spaces), also by the one it is in.
  void enter_phase(const std::string& phase, std::int64_t step);
  void begin_step(std::int64_t step, std::int64_t newest_checkpoint);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::train
