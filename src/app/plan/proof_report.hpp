// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "app/resolved_run.hpp"
#include "trireme/base/error.hpp"

namespace trireme::app {

/// Records and matches the communication of a run (plan::prove), for each row of batch.ramp.
///
/// Prints one line for each fact, or a JSON object: to standard output if `json` is "-", else to
/// this file unless it is empty. Returns `failure` if calls do not match or ranks wait for each
/// other. `path`: of the deck.
ExitCode prove_run(const std::string& path, const ResolvedRun& run, const std::string& json);

}  // namespace trireme::app
