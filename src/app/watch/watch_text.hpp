// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "run_status.hpp"
#include "trireme/train/records/run_life.hpp"

namespace trireme::app {

/// Returns the lines of a view for a terminal of `columns`: none is longer. `now`: seconds since
/// 1970-01-01 UTC.
std::vector<std::string> view_of(const RunStatus& status, const train::RunLife& life, double now,
                                 std::size_t columns);

/// Returns one line for a log: "step 400, 51.3 % of the run, 12:05 left, loss 0.4012, ...".
std::string line_of(const RunStatus& status);
/// Returns "step 400 restart: resumed from step 400".
std::string line_of(const RunStatus::Note& event);

}  // namespace trireme::app
