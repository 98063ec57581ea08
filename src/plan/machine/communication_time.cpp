// SPDX-License-Identifier: Apache-2.0
//
// Times of messages and collective operations: alpha-beta formulas, or measured times of a node.
//
// Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (2005),
// sections 3 and 4, has the formulas of rings, halving and doubling.
#include "trireme/plan/machine/communication_time.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "interpolate.hpp"
#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

// As in comm/sums/all_reduce.cpp: shorter sums exchange whole vectors.
constexpr double min_halving_bytes = 4096 * sizeof(float);

const LinkFigures& link_of(const Machine& machine, bool between_nodes) {
  const LinkFigures& link = between_nodes ? machine.network : machine.node_link;
  validate(link.bytes_per_s > 0, "machine {}: has no table [links.{}], which {} needs",
           machine.name, between_nodes ? "network" : "node",
           between_nodes ? "a run on several nodes" : "a run of several ranks on a node");
  return link;
}

/// Returns the seconds of a message on a link of which it has the part `share`.
double link_seconds(const LinkFigures& link, double bytes, double share = 1) {
  if (link.message_bytes.empty()) return link.latency_seconds + bytes / (link.bytes_per_s * share);
  // A message shorter than the shortest measured one takes as long as that one.
  const double measured = std::max(bytes, link.message_bytes.front());
  const double seconds =
      measured / interpolate(measured, link.message_bytes, link.message_bytes_per_s);
  return seconds + bytes / link.bytes_per_s * (1 / share - 1);
}

/// Returns the part of an interface that one of `messages` at the same time has on a node.
double network_share(const Machine& machine, std::int64_t messages) {
  const auto nics = static_cast<double>(std::max<std::int64_t>(1, machine.node.nics));
  return std::min(1.0, nics / static_cast<double>(std::max<std::int64_t>(1, messages)));
}

std::int64_t ranks_on_node(const CommunicationGroup& group) {
  return std::min(group.ranks, group.ranks_per_node);
}

/// A group with its number of ranks and its links.
class Links {
 public:
  Links(const Machine& machine, const CommunicationGroup& group)
      : machine_(machine), group_(group), ranks_(static_cast<double>(group.ranks)) {}

  double ranks() const { return ranks_; }
  bool is_power_of_two() const {
    return std::has_single_bit(static_cast<std::uint64_t>(group_.ranks));
  }
  int levels() const { return std::bit_width(static_cast<std::uint64_t>(group_.ranks)) - 1; }

  /// Returns the seconds of one round of a ring that moves `bytes` over every link.
  double round(double bytes) const {
    const auto nodes = static_cast<double>(group_.nodes());
    double latency = 0, rate = INFINITY;
    if (group_.ranks_per_node > 1 && group_.ranks > 1) {
      const LinkFigures& link = link_of(machine_, false);
      latency += (ranks_ - nodes) * link.latency_seconds;
      rate = link.bytes_per_s;
    }
    if (nodes > 1) {
      const LinkFigures& network = link_of(machine_, true);
      latency += (nodes - 1) * network.latency_seconds;
      // Several rings, one for each interface, run at the same time.
      const auto nics = static_cast<double>(std::max<std::int64_t>(1, machine_.node.nics));
      rate = std::min(rate,
                      network.bytes_per_s * std::max(1.0, nics) /
                          static_cast<double>(std::max<std::int64_t>(1, group_.groups_per_node)));
    }
    return latency + bytes / rate;
  }
  /// Returns the seconds of an exchange of `bytes` with the rank^(2^level).
  double exchange(int level, double bytes) const {
    return hop(bytes, (std::int64_t{1} << level) >= group_.ranks_per_node);
  }
  /// Returns the seconds of a message between neighbors, through the network if there is one.
  double hop(double bytes) const { return hop(bytes, group_.nodes() > 1); }
  /// Returns the seconds of the addition of received numbers.
  double sum(double bytes) const {
    const bool between_nodes = group_.nodes() > 1;
    const double rate = (between_nodes ? machine_.network : machine_.node_link).sum_bytes_per_s;
    return rate > 0 ? bytes / rate : 0;
  }

 private:
  double hop(double bytes, bool between_nodes) const {
    return message_seconds(machine_, bytes, between_nodes,
                           group_.ranks_per_node * group_.groups_per_node);
  }
  const Machine& machine_;
  const CommunicationGroup& group_;
  double ranks_;
};

/// Returns the seconds of the levels of a halving (or doubling) of `bytes`.
double halving(const Links& links, double bytes, bool adds) {
  double seconds = 0, part = bytes;
  for (int level = 0; level < links.levels(); ++level) {
    part /= 2;
    seconds += links.exchange(level, part) + (adds ? links.sum(part) : 0);
  }
  return seconds;
}

/// Returns the seconds of exchanges of all `bytes` with rank^1, rank^2, ..., which are added.
double exchanges(const Links& links, double bytes) {
  double seconds = 0;
  for (int level = 0; level < links.levels(); ++level)
    seconds += links.exchange(level, bytes) + links.sum(bytes);
  return seconds;
}

double tree_all_reduce(const Links& links, double bytes) {
  if (!links.is_power_of_two())
    return (links.ranks() - 1) * (2 * links.hop(bytes) + links.sum(bytes));
  if (bytes >= min_halving_bytes) return halving(links, bytes, true) + halving(links, bytes, false);
  return exchanges(links, bytes);
}

double tree_reduce_scatter(const Links& links, double bytes) {
  if (links.is_power_of_two()) return halving(links, bytes, true);
  return (links.ranks() - 1) *
         (links.hop(bytes) + links.sum(bytes) + links.hop(bytes / links.ranks()));
}

double axis_all_reduce(const Links& links, double bytes) {
  if (links.is_power_of_two()) return exchanges(links, bytes);
  double seconds = 0;
  for (int level = 0; level <= links.levels(); ++level)  // one more than levels(): rounded up
    seconds += 2 * links.exchange(level, bytes) + links.sum(bytes);
  return seconds;
}

/// Returns the group of the ranks of one node, or of one rank of every node.
CommunicationGroup inside_node(const CommunicationGroup& group) {
  return {ranks_on_node(group), ranks_on_node(group), group.groups_per_node};
}
CommunicationGroup between_nodes(const CommunicationGroup& group) {
  return {group.nodes(), 1, ranks_on_node(group) * group.groups_per_node};
}

/// Calls formula(group), or takes the measured times of a collective on one node.
template <class Formula>
double measured_or(const Machine& machine, std::string_view name, double bytes,
                   const CommunicationGroup& group, const Formula& formula) {
  const auto found = machine.collectives.find(name);
  if (found == machine.collectives.end() || group.nodes() > 1) return formula(group);
  const CollectiveFigures& figures = found->second;
  // 1. The measured number of ranks that is nearest in ratio.
  std::size_t row = 0;
  const auto distance = [&](std::size_t i) {
    return std::abs(std::log(figures.ranks[i] / static_cast<double>(group.ranks)));
  };
  for (std::size_t i = 1; i < figures.ranks.size(); ++i)
    if (distance(i) < distance(row)) row = i;
  const auto first =
      figures.seconds.begin() + static_cast<std::ptrdiff_t>(row * figures.bytes.size());
  const std::vector<double> seconds(first,
                                    first + static_cast<std::ptrdiff_t>(figures.bytes.size()));
  // 2. Its time; larger data than measured take longer in proportion.
  double result =
      interpolate(bytes, figures.bytes, seconds) * std::max(1.0, bytes / figures.bytes.back());
  // 3. Another number of ranks, by the ratio of the formula.
  const auto measured = static_cast<std::int64_t>(figures.ranks[row]);
  if (measured != group.ranks && machine.node_link.bytes_per_s > 0)
    result *= formula(group) / formula(CommunicationGroup{measured, measured, 1});
  return result;
}

}  // namespace

double message_seconds(const Machine& machine, double bytes, bool between_nodes,
                       std::int64_t messages_per_node) {
  const LinkFigures& link = link_of(machine, between_nodes);
  return link_seconds(link, bytes, between_nodes ? network_share(machine, messages_per_node) : 1);
}

double all_reduce_seconds(const Machine& machine, double bytes, const CommunicationGroup& group,
                          CollectiveAlgorithm algorithm) {
  if (group.ranks <= 1) return 0;
  switch (algorithm) {
    case CollectiveAlgorithm::rings:
      return measured_or(machine, "all_reduce", bytes, group, [&](const CommunicationGroup& g) {
        const Links links(machine, g);
        const double part = bytes * (links.ranks() - 1) / links.ranks();
        return 2 * links.round(part) + links.sum(part);
      });
    case CollectiveAlgorithm::tree:
      return measured_or(
          machine, "tree_all_reduce", bytes, group,
          [&](const CommunicationGroup& g) { return tree_all_reduce(Links(machine, g), bytes); });
    case CollectiveAlgorithm::axis:
      return measured_or(
          machine, "tree_all_reduce", bytes, group,
          [&](const CommunicationGroup& g) { return axis_all_reduce(Links(machine, g), bytes); });
    case CollectiveAlgorithm::hierarchical: {
      const double part = bytes / static_cast<double>(ranks_on_node(group));
      return reduce_scatter_seconds(machine, bytes, inside_node(group),
                                    CollectiveAlgorithm::rings) +
             all_reduce_seconds(machine, part, between_nodes(group), CollectiveAlgorithm::rings) +
             all_gather_seconds(machine, bytes, inside_node(group), CollectiveAlgorithm::rings);
    }
    case CollectiveAlgorithm::in_network: {
      const LinkFigures& link = link_of(machine, false);
      validate(link.in_network_bytes_per_s > 0,
               "machine {}: its switches do not add ([links.node] in_network_bytes_per_s)",
               machine.name);
      const double part = bytes / static_cast<double>(ranks_on_node(group));
      return 2 * link.latency_seconds + bytes / link.in_network_bytes_per_s +
             all_reduce_seconds(machine, part, between_nodes(group), CollectiveAlgorithm::rings);
    }
  }
  return 0;
}

double reduce_scatter_seconds(const Machine& machine, double bytes, const CommunicationGroup& group,
                              CollectiveAlgorithm algorithm) {
  if (group.ranks <= 1) return 0;
  if (algorithm == CollectiveAlgorithm::tree)
    return measured_or(
        machine, "tree_reduce_scatter", bytes, group,
        [&](const CommunicationGroup& g) { return tree_reduce_scatter(Links(machine, g), bytes); });
  if (algorithm == CollectiveAlgorithm::hierarchical)
    return reduce_scatter_seconds(machine, bytes, inside_node(group), CollectiveAlgorithm::rings) +
           reduce_scatter_seconds(machine, bytes / static_cast<double>(ranks_on_node(group)),
                                  between_nodes(group), CollectiveAlgorithm::rings);
  return measured_or(machine, "reduce_scatter", bytes, group, [&](const CommunicationGroup& g) {
    const Links links(machine, g);
    const double part = bytes * (links.ranks() - 1) / links.ranks();
    return links.round(part) + links.sum(part);
  });
}

double all_gather_seconds(const Machine& machine, double bytes, const CommunicationGroup& group,
                          CollectiveAlgorithm algorithm) {
  if (group.ranks <= 1) return 0;
  if (algorithm == CollectiveAlgorithm::hierarchical)
    return all_gather_seconds(machine, bytes / static_cast<double>(ranks_on_node(group)),
                              between_nodes(group), CollectiveAlgorithm::rings) +
           all_gather_seconds(machine, bytes, inside_node(group), CollectiveAlgorithm::rings);
  // MPI and the program's own gathers are the same for both orders of sums.
  return measured_or(machine, "all_gather", bytes, group, [&](const CommunicationGroup& g) {
    const Links links(machine, g);
    if (algorithm == CollectiveAlgorithm::tree && links.is_power_of_two())
      return halving(links, bytes, false);
    return links.round(bytes * (links.ranks() - 1) / links.ranks());
  });
}

CollectiveAlgorithm fastest_all_reduce(const Machine& machine, double bytes,
                                       const CommunicationGroup& group) {
  CollectiveAlgorithm best = CollectiveAlgorithm::rings;
  if (group.ranks_per_node <= 1 || group.ranks <= 1) return best;
  double seconds = all_reduce_seconds(machine, bytes, group, best);
  for (const CollectiveAlgorithm other :
       {CollectiveAlgorithm::hierarchical, CollectiveAlgorithm::in_network}) {
    if (other == CollectiveAlgorithm::hierarchical && group.nodes() == 1) continue;
    if (other == CollectiveAlgorithm::in_network && machine.node_link.in_network_bytes_per_s == 0)
      continue;
    if (const double time = all_reduce_seconds(machine, bytes, group, other); time < seconds) {
      seconds = time;
      best = other;
    }
  }
  return best;
}

}  // namespace trireme::plan
