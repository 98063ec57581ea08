#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/duration.hpp"

namespace trireme::monitor {

/// Steps `first` to `last` of a run (the first is 1), both included.
struct StepRange {
  std::int64_t first = 1, last = 1;
  bool operator==(const StepRange&) const = default;
};

/// Table [monitor].
struct MonitorOptions {
  Duration every{10, Duration::Unit::steps};
  bool tensorboard = true;
  std::optional<StepRange> trace;  ///< steps whose actions are recorded (monitor/trace.hpp)
};

}  // namespace trireme::monitor
