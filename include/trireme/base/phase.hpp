#pragma once

#include <functional>

namespace trireme {

/// Says that a part of the work begins which may take long or go wrong ("checkpoint-write"), or
/// that such a part goes on. Any thread, any library; costs next to nothing where nobody listens.
void come_by(const char* phase);

/// Who listens to come_by(), while it lives: the watchdog of a run, and its faults on purpose. One
/// at a time, called by whichever threads come by, also at once. Where a process is has no owner
/// among the objects of a run, as its signals have none: so this is global.
class PhaseListener {
 public:
  explicit PhaseListener(std::function<void(const char* phase)> listener);
  ~PhaseListener();
  PhaseListener(const PhaseListener&) = delete;
  PhaseListener& operator=(const PhaseListener&) = delete;
};

}  // namespace trireme
