// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "trireme/parallel/mesh.hpp"
#include "trireme/plan/machine/communication_time.hpp"
#include "trireme/plan/machine/machine.hpp"
#include "trireme/plan/timeline.hpp"

namespace trireme::plan {

/// Returns the nodes that `ranks` ranks fill, one rank a device.
int nodes_of(const Machine& machine, int ranks);

/// Returns the ranks of a layout that share a node.
int ranks_per_node(const Machine& machine, int ranks);

/// A sum or gather of a step, as comm::Engine::Call has it.
struct Collective {
  comm::Engine::Call::Kind kind = comm::Engine::Call::Kind::all_reduce;
  std::string_view group;  ///< name of the group
  int ranks = 1;           ///< of the group
  std::int64_t bytes = 0;
  comm::SumOrder order = comm::SumOrder::library;
  comm::TransferType transfer_type = comm::TransferType::float32;
};

/// How a sum or gather of a layout is carried out on a machine, for its time.
struct PlacedCollective {
  CommunicationGroup group;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::rings;
};
PlacedCollective place_collective(const Machine& machine, const parallel::MeshShape& shape,
                                  const Collective& collective);

/// Returns the costs of ops and requests for a layout whose ranks fill the nodes in order.
/// `tfloat32`: as in ops::ContextOptions. `machine` must outlive the result. Functions of the
/// result throw InputError if the machine lacks a figure that they need.
StepCosts costs_on(const Machine& machine, const parallel::MeshShape& shape, bool tfloat32);

}  // namespace trireme::plan
