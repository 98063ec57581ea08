// SPDX-License-Identifier: Apache-2.0
//
// `trireme plan --simgrid`: a predicted step as traces for SimGrid, and the time that the plan
// predicts for it.
#include "simgrid_replay.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/plan/proof/simgrid.hpp"
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

/// Returns what --group can name.
std::vector<std::string> group_names() {
  std::vector<std::string> names;
  for (const parallel::MeshGroup group : parallel::mesh_groups)
    names.emplace_back(plan::group_name(group));
  return names;
}

/// Returns the folder of a replay. Throws InputError if it has files, or the options are wrong.
const std::string& validated_folder(const SimgridArguments& arguments) {
  validate(!arguments.folder.empty(),
           "--topology, --taper and --group describe a replay by SimGrid: add --simgrid FOLDER, or "
           "leave them out");
  plan::check_network(network_of(arguments));
  const std::vector<std::string> names = group_names();
  validate(arguments.group.empty() ||
               std::find(names.begin(), names.end(), arguments.group) != names.end(),
           "--group {}: no such group; use one of: {}", arguments.group, fmt::join(names, ", "));
  reject_address("--simgrid " + arguments.folder, arguments.folder);
  std::error_code error;
  if (!fs::exists(arguments.folder, error)) return arguments.folder;
  validate(fs::is_directory(arguments.folder, error),
           "--simgrid {}: the folder cannot be created (a file has this name); name another one",
           arguments.folder);
  const bool is_empty = fs::is_empty(arguments.folder, error);
  validate(!error && is_empty,
           "--simgrid {}: the folder is not empty, and traces of two replays must not mix; name a "
           "new folder, or remove this one",
           arguments.folder);
  return arguments.folder;
}

/// Throws InputError if the replay does not fit on the file system of the folder; else logs its
/// estimated size.
void check_space(const std::string& folder, const plan::ReplaySize& size) {
  constexpr std::int64_t block_bytes = 4096;  // A file takes whole blocks of the file system.
  const std::int64_t needed = size.bytes + size.files * block_bytes, free = io::free_bytes(folder);
  const std::string count = counted(size.files, "file", "files");
  validate(
      needed <= free,
      "--simgrid {}: {} are to be written, about {} on the file system, which has {} free; use "
      "fewer --ranks, a smaller batch.global (fewer micro-batches), --group NAME for the "
      "communication of one group, or a folder on another file system",
      folder, count, format_bytes(needed), format_bytes(free));
  Log().info("--simgrid {}: writes {}, about {} on the file system; {} are free", folder, count,
             format_bytes(needed), format_bytes(free));
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
      .type_name("fat-tree|dragonfly");
  command
      .option("--taper", arguments.taper,
              "With --simgrid: the rate of the nodes of a leaf switch divided by that of its links "
              "upward; default: 1")
      .range(1, plan::nodes_of_a_leaf)
      .type_name("1|2|4|8|16|32");
  command
      .option("--group", arguments.group,
              "With --simgrid: only the communication over this group, without compute")
      .type_name(fmt::format("{}", fmt::join(group_names(), "|")));
}

void validate_replayed(const deck::Deck& deck) {
  const parallel::SyncKind sync = deck.parallel.sync;
  validate(sync == parallel::SyncKind::step,
           "parallel.sync = \"{}\": --simgrid writes one step, but with this key replicas do not "
           "sum their gradients within each step, so steps differ; write the replay with --set "
           "parallel.sync=step",
           sync == parallel::SyncKind::delayed
               ? "delayed"
               : fmt::format("every {} steps", deck.parallel.sync_every));
}

ReplayFolder::ReplayFolder(const SimgridArguments& arguments) : path_(validated_folder(arguments)) {
  std::error_code error = new_folders_.create(path_);
  const bool made = !error && new_folders_.create_one(path_ + "/traces", error);
  validate_path(error.value(), "--simgrid {}: the folder cannot be created ({}); name another one",
                path_, error.message());
  validate(made, "--simgrid {}: another command writes a replay into this folder; name another one",
           path_);
}

ReplayFolder::~ReplayFolder() {
  std::error_code ignored;
  for (const std::string& file : files_) fs::remove(file, ignored);
}

void ReplayFolder::write(const std::string& name, std::string_view text) {
  try {
    // Only a file that this process made may be removed.
    io::File file(path_ + "/" + name, io::File::Mode::create_new);
    files_.push_back(file.path());
    file.write_at(0, text.data(), std::ssize(text));
    file.close();
  } catch (const Failure& failure) {
    throw Failure(
        fmt::format("--simgrid: {}; the files of the replay are removed", failure.what()));
  }
}

ReportLine write_simgrid(const SimgridArguments& arguments, ReplayFolder& folder,
                         const PlanReport& report) {
  const ResolvedRun& run = report.run;
  const train::ReplicaOptions& options = report.options;
  const plan::StepCosts costs = planned_costs(report);
  const plan::RankPrograms programs =
      plan::record_programs(options, run.rows.front().mesh_shape(), run.device, {},
                            plan::RecordedRanks::places, costs.op_seconds);
  const plan::SimgridNetwork network = network_of(arguments);
  check_space(arguments.folder,
              plan::estimate_replay(programs, report.machine, network, arguments.group));
  const plan::Replay replay = plan::write_replay(
      programs, report.machine, network, arguments.group,
      [&](const std::string& path, std::string_view text) { folder.write(path, text); });
  folder.keep();
  const double seconds =
      plan::first_step_seconds(report.prediction.steps(), costs, arguments.group);
  return {"simgrid",
          fmt::format(
              "{}: {} of {} in {}; sh {}/replay.sh runs\n{}\nand should find {:.6g} s, "
              "predicted for {}",
              arguments.folder, counted(replay.processes, "process", "processes"),
              counted(replay.ranks, "rank", "ranks"), format_bytes(replay.bytes), arguments.folder,
              replay.command, seconds,
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
