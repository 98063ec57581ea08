// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/commands.hpp"
#include "app/report_line.hpp"
#include "plan_report.hpp"
#include "trireme/io/new_folders.hpp"

namespace trireme::app {

/// The options of `plan --simgrid`.
struct SimgridArguments {
  std::string folder;    // empty: no replay
  std::string topology;  // fat-tree (also if empty) or dragonfly
  int taper = 1;
  std::string group;  // empty: the whole step
  bool any() const { return !folder.empty() || !topology.empty() || taper != 1 || !group.empty(); }
};

void add_simgrid_options(Command& command, SimgridArguments& arguments);

/// The folder of a replay. Its destructor removes the files and folders that it made, unless keep()
/// was called.
class ReplayFolder {
 public:
  /// Creates the folder. Throws InputError if the options are wrong, or if the folder is not empty
  /// or cannot be written, or if another command writes a replay into it.
  explicit ReplayFolder(const SimgridArguments& arguments);
  ~ReplayFolder();
  ReplayFolder(const ReplayFolder&) = delete;
  ReplayFolder& operator=(const ReplayFolder&) = delete;

  /// Writes a file; `name` is its path in the folder. Throws InputError if it
  /// exists, Failure if the disk is full or fails.
  void write(const std::string& name, std::string_view text);
  void keep() {
    files_.clear();
    new_folders_.keep();
  }

 private:
  std::string path_;
  io::NewFolders new_folders_;
  std::vector<std::string> files_;
};

/// Throws InputError if the steps of this deck have no replay.
void validate_replayed(const deck::Deck& deck);

/// Writes the replay of a predicted step into the folder and keeps it. Returns the line of the
/// report: files, command, and the seconds that the simulator should find.
///
/// Throws InputError if the file system has no space for it, or the step has no communication over
/// the group.
ReportLine write_simgrid(const SimgridArguments& arguments, ReplayFolder& folder,
                         const PlanReport& report);

}  // namespace trireme::app
