#pragma once

#include <string>

namespace trireme::train {

/// Installs handlers that ask for a stop at the end of the step: SIGUSR1, SIGTERM, SIGINT and,
/// unless the process ignores it (nohup), SIGHUP. A second SIGTERM or SIGINT after at least 5 s
/// ends the process at once. The handlers only set flags.
void install_stop_signals();

/// Returns the first signal that asked for a stop; 0 if there was none.
int stop_signal();

/// Returns a name such as "SIGUSR1".
std::string signal_name(int signal);

}  // namespace trireme::train
