#include "trireme/parallel/mesh.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

/// A group of one needs no communicator; all ranks decide alike, as the shape is the same on all.
comm::Communicator group_of(const comm::Communicator& world, int size, int color, int key) {
  return size == 1 ? comm::Communicator() : world.split(color, key);
}

/// Rank within `ends` of a stage; -1 on those between.
int end_of(const MeshShape& shape, int stage) {
  if (stage == 0) return 0;
  return stage + 1 == shape.pipeline ? 1 : -1;
}

comm::Communicator meta_group(int rank, int size) {
  return size == 1 ? comm::Communicator() : comm::Communicator::meta(rank, size);
}

}  // namespace

MeshPlace place_of(const MeshShape& shape, int world_rank) {
  TRIREME_EXPECT(0 <= world_rank && world_rank < shape.ranks());
  return {world_rank / (shape.tensor * shape.data), world_rank / shape.tensor % shape.data,
          world_rank % shape.tensor};
}

int rank_of(const MeshShape& shape, const MeshPlace& place) {
  return (place.stage * shape.data + place.data_rank) * shape.tensor + place.tensor_rank;
}

Mesh::Mesh(const MeshShape& shape_in, const comm::Communicator& world_in)
    : shape(shape_in), world(world_in) {
  validate(shape.ranks() == world.size(),
           "parallel: data {} x tensor {} x pipeline {} takes {} ranks, and {} were started; start "
           "{} or change [parallel] to a product of {}",
           shape.data, shape.tensor, shape.pipeline, shape.ranks(), world.size(), shape.ranks(),
           world.size());
  place = place_of(shape, world.rank());
  data =
      group_of(world, shape.data, place.stage * shape.tensor + place.tensor_rank, place.data_rank);
  tensor =
      group_of(world, shape.tensor, place.stage * shape.data + place.data_rank, place.tensor_rank);
  pipeline = group_of(world, shape.pipeline, place.data_rank * shape.tensor + place.tensor_rank,
                      place.stage);
  model = group_of(world, shape.tensor * shape.pipeline, place.data_rank, world.rank());
  const int end = end_of(shape, place.stage);
  ends = group_of(world, std::min(shape.pipeline, 2),
                  end < 0 ? -1 : place.data_rank * shape.tensor + place.tensor_rank, end);
  delayed =
      group_of(world, shape.data, place.stage * shape.tensor + place.tensor_rank, place.data_rank);
}

Mesh Mesh::meta(const MeshShape& shape, int world_rank) {
  Mesh mesh;
  mesh.shape = shape;
  mesh.place = place_of(shape, world_rank);
  mesh.world = meta_group(world_rank, shape.ranks());
  mesh.data = meta_group(mesh.place.data_rank, shape.data);
  mesh.delayed = meta_group(mesh.place.data_rank, shape.data);
  mesh.tensor = meta_group(mesh.place.tensor_rank, shape.tensor);
  mesh.pipeline = meta_group(mesh.place.stage, shape.pipeline);
  mesh.model = meta_group(mesh.place.stage * shape.tensor + mesh.place.tensor_rank,
                          shape.tensor * shape.pipeline);
  const int end = end_of(shape, mesh.place.stage);
  mesh.ends = end < 0 ? comm::Communicator() : meta_group(end, std::min(shape.pipeline, 2));
  return mesh;
}

}  // namespace trireme::parallel
