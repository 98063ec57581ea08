// SPDX-License-Identifier: Apache-2.0
//
// The seconds of ops and requests on a machine: op_time.hpp and communication_time.hpp, applied to
// the ranks of a layout.

#include "trireme/plan/costs.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"
#include "trireme/plan/machine/op_time.hpp"

namespace trireme::plan {
namespace {

/// A group of a layout: its ranks are `distance` world ranks apart.
struct GroupShape {
  int ranks = 1, distance = 1;
};

GroupShape shape_of(std::string_view group, int ranks, const parallel::MeshShape& shape) {
  if (group == "data" || group == "delayed data" || group == "batch norm")
    return {ranks, shape.tensor};
  const int stage = shape.data * shape.tensor;
  if (group == "pipeline") return {ranks, stage};
  if (group == "tied") return {ranks, (shape.pipeline - 1) * stage};
  return {ranks, 1};  // tensor, world
}

CommunicationGroup placed(const GroupShape& group, int per_node) {
  // Ranks of the group within a node, and the groups that its other ranks belong to.
  const int here = std::clamp(per_node / group.distance, 1, group.ranks);
  return {.ranks = group.ranks,
          .ranks_per_node = here,
          .groups_per_node = std::max(1, per_node / here)};
}

/// A model group has the tensor ranks of one data rank from every stage.
CommunicationGroup placed_model(const parallel::MeshShape& shape, int per_node) {
  const int stage = shape.data * shape.tensor;
  const int here = per_node >= stage ? shape.tensor * std::min(shape.pipeline, per_node / stage)
                                     : std::min(shape.tensor, per_node);
  return {.ranks = shape.tensor * shape.pipeline,
          .ranks_per_node = here,
          .groups_per_node = std::max(1, per_node / here)};
}

/// The ranks of a layout on the nodes of a machine.
class RanksOnNodes {
 public:
  RanksOnNodes(const Machine& machine, const parallel::MeshShape& shape)
      : machine_(machine), shape_(shape), per_node_(ranks_per_node(machine, shape.ranks())) {}

  double request_seconds(const comm::Engine::Call& call) const {
    const auto bytes = static_cast<double>(call.bytes);
    if (call.kind == EngineKind::wait || call.kind == EngineKind::quiesce) return 0;
    if (call.kind == EngineKind::send || call.kind == EngineKind::receive) {
      const bool leaves = leaves_node(call);
      return message_seconds(machine_, bytes, leaves,
                             leaves ? std::min(per_node_, stride(call)) : 1);
    }
    if (call.order == comm::SumOrder::axes) {
      double seconds = 0;
      for (const comm::RankAxis& axis : parallel::axes_of(shape_))
        seconds += all_reduce_seconds(machine_, bytes, placed({axis.size, axis.stride}, per_node_),
                                      CollectiveAlgorithm::axis);
      return seconds;
    }
    const PlacedCollective placed = place_collective(machine_, shape_,
                                                     {.kind = call.kind,
                                                      .group = call.group.name(),
                                                      .ranks = call.group.size(),
                                                      .bytes = call.bytes,
                                                      .order = call.order,
                                                      .transfer_type = call.transfer_type});
    if (call.kind == EngineKind::all_reduce)
      return all_reduce_seconds(machine_, bytes, placed.group, placed.algorithm);
    if (call.kind == EngineKind::reduce_scatter)
      return reduce_scatter_seconds(machine_, bytes, placed.group, placed.algorithm);
    return all_gather_seconds(machine_, bytes, placed.group, placed.algorithm);
  }

  bool leaves_node(const comm::Engine::Call& call) const {
    // The records are those of the first rank of each stage.
    return stride(call) * call.peer / per_node_ != stride(call) * call.group.rank() / per_node_;
  }

 private:
  /// World ranks from one rank of the call's group to the next.
  int stride(const comm::Engine::Call& call) const {
    return shape_of(call.group.name(), call.group.size(), shape_).distance;
  }

  const Machine& machine_;
  parallel::MeshShape shape_;
  int per_node_;
};

CollectiveAlgorithm algorithm_of(const Machine& machine, const Collective& collective,
                                 const CommunicationGroup& group) {
  if (collective.kind == EngineKind::all_gather) return CollectiveAlgorithm::rings;
  // 16-bit sums by the program's own messages send as much as rings do.
  const bool is_narrow = collective.transfer_type == comm::TransferType::bfloat16;
  if (collective.order == comm::SumOrder::tree)
    return is_narrow ? CollectiveAlgorithm::rings : CollectiveAlgorithm::tree;
  if (collective.kind == EngineKind::all_reduce)
    return fastest_all_reduce(machine, static_cast<double>(collective.bytes), group);
  return CollectiveAlgorithm::rings;
}

}  // namespace

int ranks_per_node(const Machine& machine, int ranks) {
  return machine.device.kind == MachineKind::gpu
             ? std::min(ranks, static_cast<int>(machine.node.devices))
             : ranks;
}

PlacedCollective place_collective(const Machine& machine, const parallel::MeshShape& shape,
                                  const Collective& collective) {
  const int per_node = ranks_per_node(machine, shape.ranks());
  PlacedCollective result;
  result.group = collective.group == "model"
                     ? placed_model(shape, per_node)
                     : placed(shape_of(collective.group, collective.ranks, shape), per_node);
  result.algorithm = algorithm_of(machine, collective, result.group);
  return result;
}

int nodes_of(const Machine& machine, int ranks) {
  const int per_node = ranks_per_node(machine, ranks);
  return (ranks + per_node - 1) / per_node;
}

StepCosts costs_on(const Machine& machine, const parallel::MeshShape& shape, bool tfloat32) {
  const bool is_gpu = machine.device.kind == MachineKind::gpu;
  using Call = comm::Engine::Call;
  const RanksOnNodes ranks(machine, shape);
  const RankShare share{
      .ranks_on_node = is_gpu ? 1 : shape.ranks(), .ranks = shape.ranks(), .tfloat32 = tfloat32};
  return {.op_seconds = [&machine, share](
                            const ops::OpCall& call) { return op_seconds(machine, call, share); },
          .request_seconds = [ranks](const Call& call) { return ranks.request_seconds(call); },
          .leaves_node = [ranks](const Call& call) { return ranks.leaves_node(call); },
          // Ranks of a CPU occupy its cores, so messages move while they wait.
          .overlaps = is_gpu};
}

}  // namespace trireme::plan
