// Maps world ranks to mesh coordinates and splits the world into the groups of the mesh.

#include "trireme/parallel/mesh.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

/// Splits `world`; a group of one needs no communicator. The shape is equal on all ranks, so all
/// ranks call split().
comm::Communicator group_of(const comm::Communicator& world, const char* name, int size, int color,
                            int key) {
  return size == 1 ? comm::Communicator() : world.split(color, key, name);
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

Mesh::Mesh(const MeshShape& shape_in, const comm::Communicator& world_in)
    : shape(shape_in), world(world_in) {
  validate(shape.ranks() == world.size(),
           "parallel: data {} x tensor {} x pipeline {} needs {} ranks, but {} were started; start "
           "{} or change [parallel] to a product of {}",
           shape.data, shape.tensor, shape.pipeline, shape.ranks(), world.size(), shape.ranks(),
           world.size());
  TRIREME_EXPECT(shape.batch_norm > 0 && shape.data % shape.batch_norm == 0);
  coordinates = coordinates_of(shape, world.rank());
  data =
      group_of(world, "data", shape.data,
               coordinates.stage * shape.tensor + coordinates.tensor_rank, coordinates.data_rank);
  tensor =
      group_of(world, "tensor", shape.tensor,
               coordinates.stage * shape.data + coordinates.data_rank, coordinates.tensor_rank);
  pipeline =
      group_of(world, "pipeline", shape.pipeline,
               coordinates.data_rank * shape.tensor + coordinates.tensor_rank, coordinates.stage);
  model =
      group_of(world, "model", shape.tensor * shape.pipeline, coordinates.data_rank, world.rank());
  const int tied_rank = rank_in_tied_group(shape, coordinates.stage);
  tied_group =
      group_of(world, "tied", std::min(shape.pipeline, 2),
               tied_rank < 0 ? -1 : coordinates.data_rank * shape.tensor + coordinates.tensor_rank,
               tied_rank);
  delayed_data =
      group_of(world, "delayed data", shape.data,
               coordinates.stage * shape.tensor + coordinates.tensor_rank, coordinates.data_rank);
  // Neighbors among the data ranks, with the same stage and tensor rank.
  batch_norm = group_of(world, "batch norm", shape.batch_norm,
                        (coordinates.stage * shape.tensor + coordinates.tensor_rank) * shape.data +
                            coordinates.data_rank / shape.batch_norm,
                        coordinates.data_rank);
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
