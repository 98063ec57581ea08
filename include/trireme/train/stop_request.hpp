#pragma once

#include <string>

namespace trireme::train {

/// SIGUSR1, SIGTERM, SIGINT and, where it is not ignored, SIGHUP ask for a stop at the end of the
/// step; a second SIGTERM or SIGINT at least 5 s later ends the process at once. The handlers set
/// flags and nothing else.
void install_stop_signals();

/// The signal that asked for a stop, or 0.
int stop_signal();

/// "SIGUSR1".
std::string signal_name(int signal);

}  // namespace trireme::train
