#pragma once

#include <functional>

namespace trireme {

/// Says that a part of the work begins which may take long or go wrong ("checkpoint-write"), or
/// that such a part goes on. Any thread, any library; costs next to nothing where nobody listens.
void enter_phase(const char* phase);

/// Who listens to come_by(), while it lives: the watchdog of a run, and its faults on purpose. One
/// at a time, called by whichever threads come by, also at once. Where a process is has no owner
/// among the objects of a run, as its signals have none: so this is global.
class PhaseObserver {
 public:
  explicit PhaseObserver(std::function<void(const char* phase)> observer);
  ~PhaseObserver();
  PhaseObserver(const PhaseObserver&) = delete;
  PhaseObserver& operator=(const PhaseObserver&) = delete;
};

}  // namespace trireme
