// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/rank_axis.hpp"

namespace trireme::parallel {

/// The degrees of parallelism; data * tensor * pipeline = number of ranks.
struct MeshShape {
  int data = 1, tensor = 1, pipeline = 1;
  /// Neighboring data ranks that compute batch norm together; a divisor of `data`.
  int batch_norm = 1;
  int ranks() const { return data * tensor * pipeline; }
};

/// The coordinates of a rank. Tensor ranks are adjacent, then data ranks, then stages:
/// world rank = (stage * data + data_rank) * tensor + tensor_rank.
struct MeshCoordinates {
  int stage = 0, data_rank = 0, tensor_rank = 0;
};
MeshCoordinates coordinates_of(const MeshShape& shape, int world_rank);
int rank_of(const MeshShape& shape, const MeshCoordinates& coordinates);
/// Returns the axes of the world for sums in comm::SumOrder::axes: data, tensor, pipeline.
std::array<comm::RankAxis, 3> axes_of(const MeshShape& shape);

/// The groups of a mesh; the members of Mesh with the same names say what they are for.
enum class MeshGroup : std::uint8_t {
  world,
  data,
  tensor,
  pipeline,
  model,
  tied,
  delayed_data,
  batch_norm
};
inline constexpr std::array mesh_groups{
    MeshGroup::world, MeshGroup::data, MeshGroup::tensor,       MeshGroup::pipeline,
    MeshGroup::model, MeshGroup::tied, MeshGroup::delayed_data, MeshGroup::batch_norm};

/// A rank's share in the split of the world that makes a group (Communicator::split).
struct MeshSplit {
  const char* name;  ///< of the group
  int size = 1;      ///< of the group; 1: there is no communicator
  int color = 0;     ///< Ranks of one color form a group; negative: this rank has none.
  int key = 0;       ///< The order of ranks within their group.
};
MeshSplit split_of(const MeshShape& shape, int world_rank, MeshGroup group);

/// The shape, the coordinates of this rank, and its communicators.
struct Mesh {
  Mesh() = default;
  /// Collective over `world`. Throws InputError (exit 2) if shape.ranks() differs from
  /// world.size().
  Mesh(const MeshShape& shape, const comm::Communicator& world);
  /// Returns the mesh of one rank with meta communicators, for the commands plan and check.
  static Mesh meta(const MeshShape& shape, int world_rank);

  MeshShape shape;
  MeshCoordinates coordinates;
  comm::Communicator world, data, tensor, pipeline;
  /// The tensor * pipeline ranks with the same data rank, ordered by world rank: they share one
  /// replica.
  comm::Communicator model;
  /// The first and last stage with the same data and tensor rank, which both hold tied tensors.
  /// A group of one on other stages, and without a pipeline.
  comm::Communicator tied_group;
  /// The same ranks as `data`, for sums that stay under way during the next step: requests of one
  /// group run in order, so these would delay all others.
  comm::Communicator delayed_data;
  /// The shape.batch_norm neighbors among `data` that compute batch norm together, for these
  /// gathers only.
  comm::Communicator batch_norm;
};

}  // namespace trireme::parallel
