// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/plan/machine/machine.hpp"
#include "trireme/plan/proof/call_record.hpp"

namespace trireme::plan {

/// The network between the nodes of a simulated platform.
struct SimgridNetwork {
  enum class Topology : std::uint8_t { fat_tree, dragonfly };
  Topology topology = Topology::fat_tree;
  /// The common rate of the nodes of a leaf switch (of a group of a dragonfly) divided by that of
  /// its links to others.
  int taper = 1;
};

/// Nodes of a leaf switch of the fat tree. A taper divides it.
inline constexpr int nodes_of_a_leaf = 32;

/// Throws InputError if there is no such network.
void check_network(const SimgridNetwork& network);

/// Returns the platform file (XML) of `ranks` ranks on a machine. A host is a node: its interfaces
/// are one link of their common rate, and ranks of a node exchange messages through its loopback.
///
/// A route inside a leaf switch has the latency of the machine's network; longer ones have more.
/// Throws InputError if the machine has no link that the ranks need, or as check_network().
std::string simgrid_platform(const Machine& machine, int ranks, const SimgridNetwork& network);

/// The contents of a replay.
struct Replay {
  int ranks = 0, nodes = 0;
  int processes = 0;       ///< of the simulation: ranks and their streams
  std::int64_t bytes = 0;  ///< of all files
  std::string command;     ///< `smpirun ...`, to be run in the folder of the files
};

/// The files of a replay before they are written.
struct ReplaySize {
  std::int64_t files = 0;
  std::int64_t bytes = 0;  ///< Of all files, estimated.
};

/// Estimates the files that write_replay() makes of the same arguments, from the traces of at most
/// 16 ranks: exact up to 16 ranks. Throws the errors of write_replay().
ReplaySize estimate_replay(const RankPrograms& programs, const Machine& machine,
                           const SimgridNetwork& network, std::string_view group);

/// Takes a file of a replay: its path in the folder and its text.
using ReplayFile = std::function<void(const std::string& path, std::string_view text)>;

/// Writes the first step of recorded programs as time-independent traces of SimGrid (`smpirun
/// -replay`, SimGrid 3.32), with platform, host file and a script that replays them.
///
/// - `programs` are those of record_programs() with times of ops: they become `compute` lines.
/// - On GPUs a rank has further processes, one for each NCCL stream: one for each group with sums
///   or gathers, one for its messages to, and one for those from, each other rank. Requests of a
///   process run in order. On a CPU a rank carries out requests while it waits.
/// - Sums and gathers of the program's own become their messages (comm::message_steps). Those of
///   NCCL and MPI become the messages of the algorithm that the plan assumes. In-network sums
///   inside a node become time.
///
/// `group`: only the calls of this group, without ops; empty: all. Throws InputError if the step
/// has none of it, or blocking calls of communicators.
Replay write_replay(const RankPrograms& programs, const Machine& machine,
                    const SimgridNetwork& network, std::string_view group, const ReplayFile& file);

}  // namespace trireme::plan
