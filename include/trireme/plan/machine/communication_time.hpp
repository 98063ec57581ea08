// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/plan/machine/machine.hpp"

namespace trireme::plan {

/// The ranks of a collective operation. Neighboring ranks are on the same node.
struct CommunicationGroup {
  std::int64_t ranks = 1;
  std::int64_t ranks_per_node = 1;  ///< of this group
  /// Groups of the same kind that communicate at the same time from each node; they share its
  /// network interfaces.
  std::int64_t groups_per_node = 1;

  std::int64_t nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
};

/// How a collective operation is carried out. Formulas below: p ranks, n bytes of the whole data,
/// latency a, rate B of the slowest link, s seconds a byte to add received numbers.
///
/// - rings: NCCL's and MPI's. The latencies of one round are those of all links of the ring but
/// one:
///   (p - nodes) inside nodes and (nodes - 1) between them.
/// - tree: the program's own order of sums (comm::SumOrder::tree): exchanges with rank^1, rank^2,
///   rank^4 ..., below 16 KiB of whole data and above of halves, quarters ...; for other than
///   powers of two a chain.
/// - axis: one axis of comm::SumOrder::axes: exchanges of the whole data with position^1,
///   position^2, ...; for other than powers of two up the tree of halves and down.
/// - hierarchical: reduce-scatter in each node, sums between nodes of the parts, all-gather in each
///   node.
/// - in_network: switches add inside nodes, rings between nodes.
enum class CollectiveAlgorithm : std::uint8_t { rings, tree, axis, hierarchical, in_network };

/// Returns the seconds of one message. `between_nodes`: through the network, whose interfaces
/// `messages_per_node` messages share.
double message_seconds(const Machine& machine, double bytes, bool between_nodes,
                       std::int64_t messages_per_node = 1);

/// Returns the seconds until every rank has the sum of n = `bytes`.
///
/// - rings: 2 (a of a round) + 2 (p - 1) / p n / B + (p - 1) / p n s
/// - tree, short: log2(p) (a + n / B + n s), over the levels; long: over the levels i = 1 ..
///   log2(p): 2 (a + n / 2^i / B) + n / 2^i s; other p: 2 (p - 1) (a + n / B) + (p - 1) n s
/// - axis: as short sums of tree; other p: over ceil(log2(p)) levels: 2 (a + n / B) + n s
/// - hierarchical: reduce_scatter and all_gather of n in a node, and rings of n / (ranks in the
///   node) between nodes
/// - in_network: 2 a + n / (rate of the switches), and the same rings between nodes
///
/// A group on one node whose collective was measured (Machine::collectives) takes the measured
/// time, interpolated in logarithms over the bytes. For another number of ranks it is multiplied by
/// the ratio of the formula. Throws InputError if the machine lacks a link or in-network sums.
double all_reduce_seconds(const Machine& machine, double bytes, const CommunicationGroup& group,
                          CollectiveAlgorithm algorithm);

/// Returns the seconds until every rank has its part of the sum of n = `bytes`. The formulas are
/// the first half of all_reduce_seconds(). In-network: as rings.
double reduce_scatter_seconds(const Machine& machine, double bytes, const CommunicationGroup& group,
                              CollectiveAlgorithm algorithm);

/// Returns the seconds until every rank has the parts of all ranks, together n = `bytes`:
/// (p - 1) / p n / B and the latencies of one round, or of log2(p) levels for tree.
double all_gather_seconds(const Machine& machine, double bytes, const CommunicationGroup& group,
                          CollectiveAlgorithm algorithm);

/// Returns the fastest algorithm of a library (not tree) for a sum of `bytes`.
CollectiveAlgorithm fastest_all_reduce(const Machine& machine, double bytes,
                                       const CommunicationGroup& group);

}  // namespace trireme::plan
