// SPDX-License-Identifier: Apache-2.0
//
// Compares the nodes of `trireme doctor`: versions, limits, drivers, clocks, cores.
//
// For each quantity the nodes are grouped by their value. A finding names the most frequent value,
// and the nodes that have another one.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "doctor_findings.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Harm = Finding::Harm;

/// A quantity that should be equal on all nodes.
struct Quantity {
  const char* name;
  Finding::Status status;  ///< of a difference
  Harm harm;
  const char *hurts, *remedy;
  /// None if the node has no value, which find_in_nodes() reports.
  std::function<std::optional<std::string>(const NodeFacts&)> value;
};

/// Returns the values of all GPUs of a node, once if they are equal.
std::string of_gpus(const NodeFacts& node,
                    const std::function<std::string(const GpuFacts&)>& value) {
  std::vector<std::string> values;
  for (const GpuFacts& gpu : node.devices.gpus) values.push_back(value(gpu));
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string number_text(const std::optional<double>& number, const char* unit) {
  return number ? fmt::format("{:.0f} {}", *number, unit) : "";
}

/// Memory rounded to GiB: equal nodes differ by some pages.
std::string memory_text(std::int64_t bytes) {
  return fmt::format("{} GiB", (bytes + (std::int64_t{1} << 29)) >> 30);
}

const std::vector<Quantity>& quantities() {
  constexpr auto problem = Finding::Status::problem, warning = Finding::Status::warning;
  constexpr const char* same_program = "start one program on all nodes, with the same modules";
  constexpr const char* one_node = "report the nodes, or leave them out with sbatch --exclude=NODE";
  constexpr const char* mixed = "ranks may not understand each other's messages or files";
  constexpr const char* slowest = "every step takes as long as on the slowest node";
  constexpr const char* least = "the node with the least ends the run for all";
  constexpr const char* limits = "set the limits in the job script; Slurm: srun --propagate=ALL";
  static const std::vector<Quantity> all{
      {"versions of Trireme", problem, Harm::start, mixed, same_program,
       [](const NodeFacts& node) {
         return node.versions.program + " " + node.versions.source_revision;
       }},
      {"versions of MPI", problem, Harm::start, mixed, same_program,
       [](const NodeFacts& node) { return node.versions.mpi; }},
      {"versions of HDF5", problem, Harm::loss, mixed, same_program,
       [](const NodeFacts& node) { return node.versions.hdf5; }},
      {"versions of NCCL", problem, Harm::start, mixed, same_program,
       [](const NodeFacts& node) { return node.versions.nccl; }},
      {"versions of cuDNN", warning, Harm::speed, slowest, same_program,
       [](const NodeFacts& node) { return node.versions.cudnn; }},
      {"versions of oneDNN", warning, Harm::speed, slowest, same_program,
       [](const NodeFacts& node) { return node.versions.onednn; }},
      {"file systems", problem, Harm::start, "all ranks write one checkpoint file",
       "a folder of a shared file system: trireme doctor --folder $SCRATCH",
       [](const NodeFacts& node) {
         return node.folder.error.empty() ? std::optional(node.folder.file_system) : std::nullopt;
       }},
      {"numbers of GPUs", problem, Harm::start, "some ranks have no GPU of their own", one_node,
       [](const NodeFacts& node) { return std::to_string(node.devices.gpus.size()); }},
      {"GPUs", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) {
         return of_gpus(node, [](const GpuFacts& gpu) { return gpu.name; });
       }},
      {"drivers", warning, Harm::start, "a library may not support the older driver", one_node,
       [](const NodeFacts& node) {
         return of_gpus(node, [](const GpuFacts& gpu) { return gpu.driver; });
       }},
      {"highest clocks", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) {
         return of_gpus(
             node, [](const GpuFacts& gpu) { return number_text(gpu.max_clock_megahertz, "MHz"); });
       }},
      {"power limits", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) {
         return of_gpus(
             node, [](const GpuFacts& gpu) { return number_text(gpu.power_limit_watts, "W"); });
       }},
      {"processors", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) { return node.processor; }},
      {"cores", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) { return std::to_string(node.host.cores); }},
      {"memory", warning, Harm::loss, least, one_node,
       [](const NodeFacts& node) { return memory_text(node.host.memory_bytes); }},
      {"limits of memory", warning, Harm::loss, least, limits,
       [](const NodeFacts& node) {
         return node.host.group_memory_bytes ? memory_text(*node.host.group_memory_bytes) : "none";
       }},
      {"ulimit -n", warning, Harm::loss, least, limits,
       [](const NodeFacts& node) { return limit_text(node.host.open_files); }},
      {"ulimit -l", warning, Harm::loss, least, limits,
       [](const NodeFacts& node) { return limit_text(node.host.locked_memory_bytes); }},
      {"sizes of /dev/shm", warning, Harm::loss, least, one_node,
       [](const NodeFacts& node) {
         return node.host.has_shared_memory
                    ? std::optional(memory_text(node.host.shared_memory_bytes))
                    : std::nullopt;
       }},
      {"huge pages", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) { return node.host.huge_pages; }},
      {"active network ports", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) { return std::to_string(node.host.active_network_ports); }},
      {"Linux kernels", warning, Harm::speed, slowest, one_node,
       [](const NodeFacts& node) { return node.host.kernel; }},
  };
  return all;
}

}  // namespace

void find_differences(const MachineFacts& facts, std::vector<Finding>& findings) {
  if (facts.nodes.size() < 2) return;
  const std::size_t before = findings.size();
  for (const Quantity& quantity : quantities()) {
    std::map<std::string, std::vector<std::string>> nodes_by_value;
    for (const NodeFacts& node : facts.nodes)
      if (const auto value = quantity.value(node)) nodes_by_value[*value].push_back(node.host.name);
    if (nodes_by_value.size() < 2) continue;
    // The value of most nodes first; among equals that of the first node.
    std::vector<std::pair<std::string, std::vector<std::string>>> groups(nodes_by_value.begin(),
                                                                         nodes_by_value.end());
    const std::optional<std::string> first = quantity.value(facts.nodes.front());
    std::stable_sort(groups.begin(), groups.end(), [&](const auto& a, const auto& b) {
      if (a.second.size() != b.second.size()) return a.second.size() > b.second.size();
      return a.first == first && b.first != first;
    });
    std::string found;
    Finding finding{
        quantity.status, quantity.harm, "differences", "", quantity.hurts, quantity.remedy, {}};
    for (const auto& [value, nodes] : groups) {
      const bool is_usual = found.empty();
      found += fmt::format("{}{} on {}", is_usual ? std::string(quantity.name) + ": " : "; ",
                           value.empty() ? "none" : value,
                           is_usual && nodes.size() > 1
                               ? counted(static_cast<std::int64_t>(nodes.size()), "node", "nodes")
                               : list_of(nodes));
      if (!is_usual) finding.nodes.insert(finding.nodes.end(), nodes.begin(), nodes.end());
    }
    finding.found = found;
    findings.push_back(std::move(finding));
  }
  if (findings.size() == before)
    findings.push_back(
        ok("differences",
           fmt::format("none between {} nodes", static_cast<std::int64_t>(facts.nodes.size()))));
}

}  // namespace trireme::app
