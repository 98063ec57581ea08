// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "trireme/base/observer_list.hpp"

namespace trireme {

/// Reports to all PhaseObservers that a phase such as "checkpoint-write" starts or continues.
/// Called at the start of work that may take long or fail, from any thread of any library. Costs
/// one atomic load if no observer is registered.
void enter_phase(const char* phase);

/// Names a part of a phase while it exists, for reports of the watchdog. Unlike a phase it neither
/// ends another one nor has a duration. For the main thread; parts are not nested.
class PhasePart {
 public:
  /// `name` is a literal.
  explicit PhasePart(const char* name);
  ~PhasePart();
  PhasePart(const PhasePart&) = delete;
  PhasePart& operator=(const PhasePart&) = delete;
  /// Returns the part that runs now; null if there is none. From any thread.
  static const char* current();
};

/// Registers a callback for enter_phase() until its destruction. The watchdog, the fault injection
/// and the account of time of a run use it.
///
/// The callback runs in every thread that enters a phase, in several threads at once.
class PhaseObserver {
 public:
  explicit PhaseObserver(std::function<void(const char* phase)> observer);
  ~PhaseObserver();
  PhaseObserver(const PhaseObserver&) = delete;
  PhaseObserver& operator=(const PhaseObserver&) = delete;

 private:
  ObserverList<const char*>::Place place_;
};

}  // namespace trireme
