// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/duration.hpp"

namespace trireme::monitor {

/// Steps `first` to `last` of a run, both included. The first step of a run is 1.
struct StepRange {
  std::int64_t first = 1, last = 1;
  bool operator==(const StepRange&) const = default;
};

/// The table [monitor] of the deck; the keys are documented in docs/reference/deck.md.
struct MonitorOptions {
  Duration every{10, Duration::Unit::steps};
  bool tensorboard = true;
  std::optional<Duration> noise_scale;  ///< interval of its measurements
  std::optional<Duration> tensors;      ///< interval of the norms of every tensor
  std::optional<StepRange> trace;       ///< steps recorded in the trace (monitor/trace.hpp)
  /// The machine that the run is compared with: a name that the program knows, or the path of a
  /// machine file; empty: none.
  std::string machine;
  /// The file of the latest figures for Prometheus (monitor/prometheus.hpp); empty: none.
  std::string prometheus;
};

}  // namespace trireme::monitor
