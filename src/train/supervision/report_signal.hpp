// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace trireme::train {

/// Installs a handler of SIGUSR2 that asks the watchdog's thread for a report of this rank. The
/// handler only writes to an event descriptor. Called once per process, before the watchdog starts.
void install_report_signal();

/// Returns a descriptor that is readable while a report is requested; -1 before
/// install_report_signal(), or if the system has no descriptor left.
int report_descriptor();

/// Returns whether a report was requested since the last call, and clears the request.
bool take_report_request();

}  // namespace trireme::train
