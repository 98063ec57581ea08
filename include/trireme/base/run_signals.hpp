// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <initializer_list>

namespace trireme {

/// Signals that `trireme train` handles: SIGUSR2 asks for a report, the others ask for a stop.
inline constexpr std::array run_signals{SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGUSR2};

/// Lets these signals reach the calling thread. src/app/start.cpp has blocked them.
inline void unblock(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace trireme
