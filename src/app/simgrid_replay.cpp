// `trireme plan --simgrid`: a predicted step as traces for SimGrid, and the time that the plan
// predicts for it.
#include "simgrid_replay.hpp"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/plan/simgrid.hpp"
#include "trireme/plan/timeline.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

plan::SimgridNetwork network_of(const SimgridArguments& arguments) {
  using Topology = plan::SimgridNetwork::Topology;
  const bool is_dragonfly = arguments.topology == "dragonfly";
  validate(is_dragonfly || arguments.topology.empty() || arguments.topology == "fat-tree",
           "--topology {}: unknown; use fat-tree or dragonfly", arguments.topology);
  return {.topology = is_dragonfly ? Topology::dragonfly : Topology::fat_tree,
          .taper = arguments.taper};
}

void write_file(const std::string& folder, const std::string& name, std::string_view text) {
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  validate(!error, "--simgrid {}: the folder cannot be created ({}); name another one", folder,
           error.message());
  io::File file(path.string(), io::File::Mode::create);
  file.write_at(0, text.data(), std::ssize(text));
  file.close();
}

}  // namespace

void add_simgrid_options(Command& command, SimgridArguments& arguments) {
  command
      .option("--simgrid", arguments.folder,
              "Also write what every rank does in a step as traces for SimGrid, into a new folder, "
              "and print the command that replays them")
      .type_name("FOLDER");
  command
      .option("--topology", arguments.topology,
              "With --simgrid: the network between nodes, fat-tree (default) or dragonfly")
      .type_name("NAME");
  command
      .option("--taper", arguments.taper,
              "With --simgrid: the rate of the nodes of a leaf switch divided by that of its links "
              "upward: 1, 2, 4 ... 32; default: 1")
      .type_name("N");
  command
      .option("--group", arguments.group,
              "With --simgrid: only the communication over this group, such as data, tensor or "
              "pipeline, without compute")
      .type_name("NAME");
}

void begin_simgrid(const SimgridArguments& arguments) {
  validate(!arguments.folder.empty(),
           "--topology, --taper and --group describe a replay by SimGrid: add --simgrid FOLDER, or "
           "leave them out");
  plan::check_network(network_of(arguments));
  bool is_group = arguments.group.empty();
  std::string names;
  for (const parallel::MeshGroup group : parallel::mesh_groups) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", plan::group_name(group));
    is_group = is_group || arguments.group == plan::group_name(group);
  }
  validate(is_group, "--group {}: no such group; use one of: {}", arguments.group, names);
  std::error_code error;
  if (!fs::exists(arguments.folder, error)) return;
  validate(fs::is_directory(arguments.folder, error),
           "--simgrid {}: the folder cannot be created (a file has this name); name another one",
           arguments.folder);
  const bool is_empty = fs::is_empty(arguments.folder, error);
  validate(!error && is_empty,
           "--simgrid {}: the folder is not empty, and traces of two replays must not mix; name a "
           "new folder, or remove this one",
           arguments.folder);
}

ReportLine write_simgrid(const SimgridArguments& arguments, const PlanReport& report) {
  const ResolvedRun& run = report.run;
  const train::ResolvedLayout& layout = run.rows.front();
  const auto [options, costs] = planned_step(report);
  validate(options.sync == parallel::SyncKind::step,
           "--simgrid: a step with parallel.sync = \"delayed\" or \"periodic\" differs from the "
           "next one, and only one is written; use parallel.sync = \"step\"");
  const plan::RankPrograms programs = plan::record_programs(
      options, layout.mesh_shape(), run.device, {}, plan::RecordedRanks::places, costs.op_seconds);
  const plan::Replay replay =
      plan::write_replay(programs, report.machine, network_of(arguments), arguments.group,
                         [&](const std::string& path, std::string_view text) {
                           write_file(arguments.folder, path, text);
                         });
  const double seconds =
      plan::first_step_seconds(report.prediction.steps(), costs, arguments.group);
  return {
      "simgrid",
      fmt::format(
          "{}: {} of {} in {}; sh {}/replay.sh runs\n{}\nand should find {:.6g} s, "
          "predicted for {}",
          arguments.folder, counted(replay.processes, "process", "processes"),
          counted(replay.ranks, "rank", "ranks"), format_bytes(static_cast<double>(replay.bytes)),
          arguments.folder, replay.command, seconds,
          arguments.group.empty() ? "the first step" : "group " + arguments.group + " alone"),
      {{"folder", arguments.folder},
       {"ranks", replay.ranks},
       {"nodes", replay.nodes},
       {"processes", replay.processes},
       {"bytes", replay.bytes},
       {"group", arguments.group},
       {"topology", arguments.topology.empty() ? "fat-tree" : arguments.topology},
       {"taper", arguments.taper},
       {"command", replay.command},
       {"predicted_s", seconds}}};
}

}  // namespace trireme::app
