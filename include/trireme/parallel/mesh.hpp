#pragma once

#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::parallel {

/// data x tensor x pipeline = world.
struct MeshShape {
  int data = 1, tensor = 1, pipeline = 1;
  int ranks() const { return data * tensor * pipeline; }
};

/// Where a rank stands. Tensor groups are neighbours, then data, pipeline outermost: rank = (stage
/// * data + data_rank) * tensor + tensor_rank.
struct MeshCoordinates {
  int stage = 0, data_rank = 0, tensor_rank = 0;
};
MeshCoordinates coordinates_of(const MeshShape& shape, int world_rank);
int rank_of(const MeshShape& shape, const MeshCoordinates& coordinates);

/// The mesh with its communicators.
struct Mesh {
  Mesh() = default;
  /// Collective over world. shape.ranks() == world.size().
  Mesh(const MeshShape& shape, const comm::Communicator& world);
  /// A rank of a mesh that is not here (plan, check).
  static Mesh meta(const MeshShape& shape, int world_rank);

  MeshShape shape;
  MeshCoordinates coordinates;
  comm::Communicator world, data, tensor, pipeline;
  /// The ranks of one data rank, tensor x pipeline in the order of their world ranks: what one
  /// replica's model is spread over.
  comm::Communicator model;
  /// First and last stage of one data and tensor rank, where tied tensors are summed; on other
  /// stages, and without a pipeline, of one rank.
  comm::Communicator tied_group;
  /// The ranks of `data` once more: for sums that go on while others of that group are asked for,
  /// which would have to wait behind them.
  comm::Communicator delayed_data;
};

}  // namespace trireme::parallel
