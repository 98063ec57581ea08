#pragma once

#include <functional>

namespace trireme {

/// Reports to the registered PhaseObserver that a phase such as "checkpoint-write" starts or
/// continues. Called at the start of work that may take long or fail, from any thread of any
/// library. Costs one shared lock if no observer is registered.
void enter_phase(const char* phase);

/// Registers a callback for enter_phase() until its destruction. The run's watchdog and its fault
/// injection use it.
///
/// At most one observer exists at a time. The callback runs in every thread that enters a phase, in
/// several threads at once. The registration is global, like the signal handlers of a process,
/// because no object of a run owns the process.
class PhaseObserver {
 public:
  explicit PhaseObserver(std::function<void(const char* phase)> observer);
  ~PhaseObserver();
  PhaseObserver(const PhaseObserver&) = delete;
  PhaseObserver& operator=(const PhaseObserver&) = delete;
};

}  // namespace trireme
