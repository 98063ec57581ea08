// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/monitor/run_folder.hpp"

namespace trireme::train {

/// The state of a run outside of its rows. Texts are printable and short.
struct RunLife {
  std::string name;  ///< the last name of its folder: "fashion" of "runs/fashion/"
  /// Seconds since run.lock was renewed; none if it is not there.
  std::optional<double> heartbeat_age = {};
  std::optional<std::int64_t> exit_code = {};  ///< of exit.json
  std::string exit_reason = {};
  std::optional<monitor::ExitTimes> times = {};  ///< of exit.json
  std::string trouble = {};                      ///< why exit.json cannot be read

  /// Returns whether a process works on the run. One that is lost leaves run.lock behind, but does
  /// not renew it, or has left exit.json too.
  bool is_running() const;
};

/// Reads run.lock and exit.json of a run folder. Changes nothing in it.
RunLife read_life(const monitor::RunFolder& folder);

/// Returns "ended with 0: ...", "running, heartbeat 3 s ago", or that the run was killed.
std::string describe(const RunLife& life);

}  // namespace trireme::train
