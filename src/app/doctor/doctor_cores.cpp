// SPDX-License-Identifier: Apache-2.0
//
// Compares the threads of the ranks of each node with the cores that they may use.
//
// Ranks share cores correctly if every set of cores has as many cores as the ranks confined to it
// have threads. It suffices to look at the sets that the ranks have, and at their union. The same
// rule with physical cores finds threads that share the units of one core.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "doctor_findings.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Harm = Finding::Harm;
using Cores = std::vector<int>;  // ascending, without duplicates

/// A rank of a node, with one of its two sets: logical or physical cores.
struct Confined {
  std::size_t world_rank;
  int threads;
  Cores cores;
};

/// A set of cores with too many threads.
struct Crowd {
  Cores cores;
  std::vector<std::size_t> world_ranks;
  int threads = 0;
};

Cores sorted(Cores cores) {
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

/// Returns the set with the most threads per core, if a set has more threads than cores.
std::optional<Crowd> most_crowded(const std::vector<Confined>& ranks) {
  std::set<Cores> sets;
  Cores all;
  for (const Confined& rank : ranks) {
    sets.insert(rank.cores);
    all.insert(all.end(), rank.cores.begin(), rank.cores.end());
  }
  sets.insert(sorted(all));
  std::optional<Crowd> worst;
  for (const Cores& cores : sets) {
    Crowd crowd{.cores = cores, .world_ranks = {}};
    for (const Confined& rank : ranks) {
      if (!std::includes(cores.begin(), cores.end(), rank.cores.begin(), rank.cores.end()))
        continue;
      crowd.world_ranks.push_back(rank.world_rank);
      crowd.threads += rank.threads;
    }
    const auto load = [](const Crowd& one) {
      return static_cast<double>(one.threads) / static_cast<double>(one.cores.size());
    };
    if (!cores.empty() && load(crowd) > 1 && (!worst || load(crowd) > load(*worst))) worst = crowd;
  }
  return worst;
}

std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::vector<std::string> names;
  for (const std::size_t rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_of(names);
}

/// Returns "core 3", "cores 0-7" or "cores 0,2,4".
std::string cores_text(const Cores& cores) {
  std::string text;
  for (std::size_t begin = 0; begin < cores.size();) {
    std::size_t end = begin + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cores[begin]);
    if (end - begin > 1) text += "-" + std::to_string(cores[end - 1]);
    begin = end;
  }
  return (cores.size() == 1 ? "core " : "cores ") + text;
}

/// Returns how a user gives the ranks more cores.
std::string more_cores(const NodeFacts& node, std::int64_t per_rank) {
  if (node.cores_per_task > 0)
    return fmt::format("export SRUN_CPUS_PER_TASK={} (srun does not take it from sbatch)",
                       node.cores_per_task);
  return fmt::format("srun --cpus-per-task={0}, mpirun --map-by slot:PE={0} or --bind-to none",
                     per_rank);
}

/// Too many threads on a set of logical cores.
Finding crowded(const Crowd& crowd, const NodeFacts& node, std::int64_t node_cores,
                std::int64_t share) {
  const auto ranks = static_cast<std::int64_t>(crowd.world_ranks.size()),
             cores = static_cast<std::int64_t>(crowd.cores.size());
  std::string remedy;
  if (node_cores > cores) remedy = more_cores(node, share) + "; or ";
  // With more ranks than cores, fewer threads do not help.
  remedy += ranks > cores ? "fewer ranks a node"
                          : fmt::format("export OMP_NUM_THREADS={}", cores / ranks);
  return problem(Harm::speed, "cores",
                 fmt::format("{} {} {} on {}", ranks_text(crowd.world_ranks),
                             crowd.world_ranks.size() == 1 ? "has" : "have",
                             counted(crowd.threads, "thread", "threads"), cores_text(crowd.cores)),
                 "every step: waiting threads spin, and one delayed thread delays all", remedy);
}

/// A rank that may use one core, while the node has several for each rank.
Finding bound_to_one_core(std::size_t world_rank, const Cores& cores, const NodeFacts& node,
                          std::int64_t share) {
  return problem(Harm::speed, "cores",
                 fmt::format("rank {} may use {} only, of {} cores a rank", world_rank,
                             cores_text(cores), share),
                 "every step: computation, reader threads and communication share one core",
                 more_cores(node, share));
}

Finding find_in_node(const NodeFacts& node, const std::vector<Confined>& logical,
                     const std::vector<Confined>& physical, bool has_gpus) {
  const auto ranks = static_cast<std::int64_t>(logical.size());
  const int node_cores =
      node.batch_cores > 0 ? std::min(node.batch_cores, node.host.cores) : node.host.cores;
  const std::int64_t share = std::max<std::int64_t>(1, node_cores / ranks);
  if (const auto crowd = most_crowded(logical)) return crowded(*crowd, node, node_cores, share);
  for (const Confined& rank : logical)
    if (rank.cores.size() == 1 && share > 1)
      return bound_to_one_core(rank.world_rank, rank.cores, node, share);
  if (const auto crowd = most_crowded(physical))
    return warning(
        Harm::speed, "cores",
        fmt::format("{} {} {} on {}", ranks_text(crowd->world_ranks),
                    crowd->world_ranks.size() == 1 ? "has" : "have",
                    counted(crowd->threads, "thread", "threads"),
                    counted(static_cast<std::int64_t>(crowd->cores.size()), "physical core",
                            "physical cores")),
        "every step: hardware threads share the vector units of a core",
        fmt::format("export OMP_NUM_THREADS={}, or srun --hint=nomultithread",
                    std::max<std::size_t>(1, crowd->cores.size() / crowd->world_ranks.size())));
  Cores all;
  int threads = 0;
  for (const Confined& rank : logical) {
    all.insert(all.end(), rank.cores.begin(), rank.cores.end());
    threads += rank.threads;
  }
  const auto cores = static_cast<std::int64_t>(sorted(all).size());
  const std::string found = fmt::format("{}, {}, {} of {}", counted(ranks, "rank", "ranks"),
                                        counted(threads, "thread", "threads"),
                                        counted(cores, "core", "cores"), node.host.cores);
  if (has_gpus && cores < 2 * ranks)
    return warning(Harm::speed, "cores", found,
                   "batches arrive late: a rank with a GPU needs cores for reader threads",
                   "request 4 cores or more a rank, as in srun --cpus-per-task=4");
  return ok("cores", found);
}

}  // namespace

void find_in_cores(const MachineFacts& facts, std::vector<Finding>& findings) {
  for (std::size_t rank = 0; rank < facts.ranks.size(); ++rank) {
    if (facts.ranks[rank].threads_error.empty()) continue;
    findings.push_back(problem(Harm::start, "threads",
                               fmt::format("rank {}: {}", rank, facts.ranks[rank].threads_error),
                               "train exits with 2", "export OMP_NUM_THREADS=1"));
    return;  // One rank stands for all: they get the same environment.
  }
  std::vector<Finding> of_nodes;
  for (const NodeFacts& node : facts.nodes) {
    std::vector<Confined> logical, physical;
    bool known = true, has_gpus = false;
    for (std::size_t rank = 0; rank < facts.ranks.size(); ++rank) {
      const RankFacts& one = facts.ranks[rank];
      if (one.host != node.host.name) continue;
      known &= one.cores_are_known && !one.cores.empty();
      has_gpus |= !one.gpu.empty();
      logical.push_back({rank, one.threads, sorted(one.cores)});
      physical.push_back({rank, one.threads, sorted(one.physical_cores)});
    }
    if (logical.empty()) continue;
    Finding finding =
        known ? find_in_node(node, logical, physical, has_gpus)
              : ok("cores",
                   "not known: OMP_PROC_BIND binds the main thread of each rank to a part of them");
    finding.nodes = {node.host.name};
    of_nodes.push_back(std::move(finding));
  }
  append_joined(std::move(of_nodes), facts.nodes.size(), findings);
}

}  // namespace trireme::app
