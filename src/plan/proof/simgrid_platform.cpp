// SPDX-License-Identifier: Apache-2.0
//
// Writes the platform of a SimGrid simulation: nodes of the machine file in a fat tree or a
// dragonfly.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/proof/simgrid.hpp"

namespace trireme::plan {
namespace {

int divide_up(int value, int by) { return (value + by - 1) / by; }

/// A topology in SimGrid's words, and its hosts: the nodes of the run, and unused ones.
struct Cluster {
  const char* topology;
  std::string parameters;
  int hosts = 0;
};

/// Two levels: every spine switch has a link to every leaf switch.
Cluster fat_tree(int nodes, int taper) {
  const int leaves = divide_up(nodes, nodes_of_a_leaf), spines = nodes_of_a_leaf / taper;
  return {"FAT_TREE", fmt::format("2;{},{};1,{};1,1", nodes_of_a_leaf, leaves, spines),
          leaves * nodes_of_a_leaf};
}

/// Groups of routers with two nodes each. All routers of a group are connected, and all groups.
Cluster dragonfly(int nodes, int taper) {
  // SimGrid takes router i of a group for its link to group i.
  int routers = 16;
  while (divide_up(nodes, 2 * routers) > routers) routers *= 2;
  const int groups = divide_up(nodes, 2 * routers);
  const int links = std::max(1, divide_up(2 * routers, taper * std::max(1, groups - 1)));
  return {"DRAGONFLY", fmt::format("{},{};1,1;{},1;2", groups, links, routers),
          groups * 2 * routers};
}

}  // namespace

void check_network(const SimgridNetwork& network) {
  validate(network.taper >= 1 && nodes_of_a_leaf % network.taper == 0,
           "--taper {}: must be a divisor of {}, the nodes of a leaf switch: 1, 2, 4, 8, 16 or 32",
           network.taper, nodes_of_a_leaf);
}

std::string simgrid_platform(const Machine& machine, int ranks, const SimgridNetwork& network) {
  check_network(network);
  const int per_node = ranks_per_node(machine, ranks), nodes = nodes_of(machine, ranks);
  validate(nodes == 1 || machine.network.bytes_per_s > 0,
           "machine {}: has no table [links.network], which a run on several nodes needs",
           machine.name);
  validate(per_node == 1 || machine.node_link.bytes_per_s > 0,
           "machine {}: has no table [links.node], which a run of several ranks on a node needs",
           machine.name);
  // A link that no message takes needs a rate too.
  const LinkFigures& link = nodes > 1 ? machine.network : machine.node_link;
  const LinkFigures& node = per_node > 1 ? machine.node_link : link;
  const auto nics = static_cast<double>(std::max<std::int64_t>(1, machine.node.nics));
  const Cluster cluster = network.topology == SimgridNetwork::Topology::fat_tree
                              ? fat_tree(nodes, network.taper)
                              : dragonfly(nodes, network.taper);
  return fmt::format(
      "<?xml version='1.0'?>\n"
      "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<!-- {} nodes, {} ranks on each. A link has the rate of all interfaces of a node. A\n"
      "     message passes two or more links, so each has half of the latency. -->\n"
      "<platform version=\"4.1\">\n"
      "  <cluster id=\"machine\" prefix=\"node-\" suffix=\"\" radical=\"0-{}\" speed=\"1Gf\"\n"
      "           core=\"1024\" bw=\"{:.6g}Bps\" lat=\"{:.6g}s\" loopback_bw=\"{:.6g}Bps\"\n"
      "           loopback_lat=\"{:.6g}s\" topology=\"{}\" topo_parameters=\"{}\"/>\n"
      "</platform>\n",
      nodes, per_node, cluster.hosts - 1, link.bytes_per_s * nics, link.latency_seconds / 2,
      node.bytes_per_s, node.latency_seconds, cluster.topology, cluster.parameters);
}

}  // namespace trireme::plan
