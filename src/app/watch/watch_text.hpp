// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "run_status.hpp"

namespace trireme::app {

/// How a run is doing outside of its rows.
struct RunLife {
  std::string name;
  bool is_held = false;                      ///< A process holds run.lock.
  std::optional<double> heartbeat_age = {};  ///< seconds since it was renewed
  std::optional<int> exit_code = {};         ///< of exit.json
  std::string exit_reason = {};
};

/// Returns the lines of a view for a terminal of `columns`: none is longer. `now`: seconds since
/// 1970-01-01 UTC.
std::vector<std::string> view_of(const RunStatus& status, const RunLife& life, double now,
                                 std::size_t columns);

/// Returns one line for a log: "step 400, 51.3 % of the run, 12:05 left, loss 0.4012, ...".
std::string line_of(const RunStatus& status);

/// Returns "ended: done (the stop condition ...)", "running", or that no process holds the run.
std::string describe_life(const RunLife& life);

}  // namespace trireme::app
