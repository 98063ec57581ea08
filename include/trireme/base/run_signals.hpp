// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>

namespace trireme {

/// Signals that `trireme train` handles: SIGUSR2 asks for a report, the others ask for a stop.
inline constexpr std::array run_signals{SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGUSR2};

}  // namespace trireme
