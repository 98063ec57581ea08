// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/monitor/run_folder.hpp"

namespace trireme::train {

/// Installs handlers that ask for a stop at the end of the step: SIGUSR1, SIGTERM, SIGINT and,
/// unless the process ignores it (nohup), SIGHUP. A second SIGTERM or SIGINT after at least 5 s
/// ends the process at once. The handlers only set flags.
void install_stop_signals();

/// Returns the first signal that asked for a stop; 0 if there was none.
int stop_signal();

/// Returns a name such as "SIGUSR1".
std::string signal_name(int signal);

/// The file STOP in a run folder, by which a user asks for a stop.
class StopFile {
 public:
  explicit StopFile(const std::string& run_folder)
      : path_(monitor::RunFolder(run_folder) / io::run_names::stop_file) {}
  /// Returns whether the file exists. Looks at most twice a second: a parallel file system is slow
  /// at that.
  bool exists();
  /// Returns the last result of exists().
  bool was_found() const { return was_found_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  double looked_at_ = -1;
  bool was_found_ = false;
};

/// Returns who asked for a stop, as seen by this rank: a signal, the file, the source of the wall
/// time if `time_is_up`, or another rank.
std::string stop_reason(const StopFile& file, bool time_is_up, const std::string& time_source);

}  // namespace trireme::train
