#pragma once

#include <string>

#include "commands.hpp"
#include "plan_report.hpp"
#include "report_line.hpp"

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

/// Checks the options. Throws InputError, also if the folder is not empty.
void begin_simgrid(const SimgridArguments& arguments);

/// Creates the folder and writes the replay of a predicted step into it. Returns the line of the
/// report: files, command, and the seconds that the simulator should find. Throws InputError.
ReportLine write_simgrid(const SimgridArguments& arguments, const PlanReport& report);

}  // namespace trireme::app
