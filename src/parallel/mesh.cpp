// SPDX-License-Identifier: Apache-2.0
//
// Maps world ranks to mesh coordinates and splits the world into the groups of the mesh.

#include "trireme/parallel/mesh.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

/// Splits `world`; a group of one needs no communicator. The shape is equal on all ranks, so all
/// ranks call split().
comm::Communicator split(const comm::Communicator& world, const MeshShape& shape, MeshGroup group) {
  const MeshSplit mine = split_of(shape, world.rank(), group);
  return mine.size == 1 ? comm::Communicator() : world.split(mine.color, mine.key, mine.name);
}

/// Returns the rank of a stage within `tied_group`; -1 for stages between the first and the last.
int rank_in_tied_group(const MeshShape& shape, int stage) {
  if (stage == 0) return 0;
  return stage + 1 == shape.pipeline ? 1 : -1;
}

comm::Communicator meta_group(int rank, int size, std::string_view name) {
  return size == 1 ? comm::Communicator() : comm::Communicator::meta(rank, size, name);
}

}  // namespace

MeshCoordinates coordinates_of(const MeshShape& shape, int world_rank) {
  TRIREME_EXPECT(0 <= world_rank && world_rank < shape.ranks());
  return {world_rank / (shape.tensor * shape.data), world_rank / shape.tensor % shape.data,
          world_rank % shape.tensor};
}

int rank_of(const MeshShape& shape, const MeshCoordinates& coordinates) {
  return (coordinates.stage * shape.data + coordinates.data_rank) * shape.tensor +
         coordinates.tensor_rank;
}

std::array<comm::RankAxis, 3> axes_of(const MeshShape& shape) {
  return {{{.size = shape.data, .stride = shape.tensor},
           {.size = shape.tensor, .stride = 1},
           {.size = shape.pipeline, .stride = shape.data * shape.tensor}}};
}

MeshSplit split_of(const MeshShape& shape, int world_rank, MeshGroup group) {
  const MeshCoordinates at = coordinates_of(shape, world_rank);
  // Ranks with the same stage and tensor rank, and those of one pipeline.
  const int place = at.stage * shape.tensor + at.tensor_rank,
            pipeline = at.data_rank * shape.tensor + at.tensor_rank;
  switch (group) {
    case MeshGroup::world: break;
    case MeshGroup::data: return {"data", shape.data, place, at.data_rank};
    case MeshGroup::tensor:
      return {"tensor", shape.tensor, at.stage * shape.data + at.data_rank, at.tensor_rank};
    case MeshGroup::pipeline: return {"pipeline", shape.pipeline, pipeline, at.stage};
    case MeshGroup::model:
      return {"model", shape.tensor * shape.pipeline, at.data_rank, world_rank};
    case MeshGroup::tied: {
      const int rank = rank_in_tied_group(shape, at.stage);
      return {"tied", std::min(shape.pipeline, 2), rank < 0 ? -1 : pipeline, rank};
    }
    case MeshGroup::delayed_data: return {"delayed data", shape.data, place, at.data_rank};
    case MeshGroup::batch_norm:
      // Neighbors among the data ranks, with the same stage and tensor rank.
      return {"batch norm", shape.batch_norm, place * shape.data + at.data_rank / shape.batch_norm,
              at.data_rank};
  }
  return {"world", shape.ranks(), 0, world_rank};
}

Mesh::Mesh(const MeshShape& shape_in, const comm::Communicator& world_in)
    : shape(shape_in), world(world_in) {
  validate(shape.ranks() == world.size(),
           "parallel: data {} x tensor {} x pipeline {} needs {} ranks, but {} were started; start "
           "{} or change [parallel] to a product of {}",
           shape.data, shape.tensor, shape.pipeline, shape.ranks(), world.size(), shape.ranks(),
           world.size());
  TRIREME_EXPECT(shape.batch_norm > 0 && shape.data % shape.batch_norm == 0);
  coordinates = coordinates_of(shape, world.rank());
  data = split(world, shape, MeshGroup::data);
  tensor = split(world, shape, MeshGroup::tensor);
  pipeline = split(world, shape, MeshGroup::pipeline);
  model = split(world, shape, MeshGroup::model);
  tied_group = split(world, shape, MeshGroup::tied);
  delayed_data = split(world, shape, MeshGroup::delayed_data);
  batch_norm = split(world, shape, MeshGroup::batch_norm);
}

Mesh Mesh::meta(const MeshShape& shape, int world_rank) {
  Mesh mesh;
  mesh.shape = shape;
  mesh.coordinates = coordinates_of(shape, world_rank);
  mesh.world = meta_group(world_rank, shape.ranks(), "world");
  mesh.data = meta_group(mesh.coordinates.data_rank, shape.data, "data");
  mesh.delayed_data = meta_group(mesh.coordinates.data_rank, shape.data, "delayed data");
  mesh.batch_norm =
      meta_group(mesh.coordinates.data_rank % shape.batch_norm, shape.batch_norm, "batch norm");
  mesh.tensor = meta_group(mesh.coordinates.tensor_rank, shape.tensor, "tensor");
  mesh.pipeline = meta_group(mesh.coordinates.stage, shape.pipeline, "pipeline");
  mesh.model = meta_group(mesh.coordinates.stage * shape.tensor + mesh.coordinates.tensor_rank,
                          shape.tensor * shape.pipeline, "model");
  const int tied_rank = rank_in_tied_group(shape, mesh.coordinates.stage);
  mesh.tied_group = tied_rank < 0 ? comm::Communicator()
                                  : meta_group(tied_rank, std::min(shape.pipeline, 2), "tied");
  return mesh;
}

}  // namespace trireme::parallel
