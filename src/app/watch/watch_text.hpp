// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "run_status.hpp"

namespace trireme::app {

/// The state of a run outside of its rows.
struct RunLife {
  std::string name;
  /// Seconds since run.lock was renewed; none if it is not there.
  std::optional<double> heartbeat_age = {};
  std::optional<std::int64_t> exit_code = {};  ///< of exit.json
  std::string exit_reason = {};
  std::string trouble = {};  ///< why a file of the folder cannot be read

  /// Returns whether a process works on the run. One that is lost leaves run.lock behind, but does
  /// not renew it, or has left exit.json too.
  bool is_running() const;
};

/// Returns the lines of a view for a terminal of `columns`: none is longer. `now`: seconds since
/// 1970-01-01 UTC.
std::vector<std::string> view_of(const RunStatus& status, const RunLife& life, double now,
                                 std::size_t columns);

/// Returns one line for a log: "step 400, 51.3 % of the run, 12:05 left, loss 0.4012, ...".
std::string line_of(const RunStatus& status);
/// Returns "step 400 restart: resumed from step 400".
std::string line_of(const RunStatus::Note& event);

/// Returns "ended with 0: ...", "running, heartbeat 3 s ago", or that the run was killed.
std::string describe_life(const RunLife& life);

}  // namespace trireme::app
