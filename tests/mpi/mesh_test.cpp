// SPDX-License-Identifier: Apache-2.0
//
// Mesh at 1, 2 and 4 ranks: coordinates, members of all groups, and the same groups on meta.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/mpi.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/parallel/mesh.hpp"

namespace trireme::parallel {
namespace {

using testing::HasSubstr;

const comm::Communicator& world() { return test_environment().world(); }

std::vector<MeshShape> shapes_of(int ranks) {
  std::vector<MeshShape> shapes;
  for (int data = 1; data <= ranks; ++data) {
    for (int tensor = 1; tensor <= ranks; ++tensor) {
      if (ranks % (data * tensor) == 0) shapes.push_back({data, tensor, ranks / (data * tensor)});
    }
  }
  return shapes;
}

TEST(Mesh, PlaceAndRankAreInverse) {
  for (const int ranks : {1, 6, 8, 24}) {
    for (const MeshShape& shape : shapes_of(ranks)) {
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(rank_of(shape, coordinates_of(shape, rank)), rank);
    }
  }
}

TEST(Mesh, GroupsHoldTheRanksThatShareTheOtherTwoCoordinates) {
  for (const MeshShape& shape : shapes_of(world().size())) {
    const Mesh mesh(shape, world());
    EXPECT_EQ(mesh.data.rank(), mesh.coordinates.data_rank);
    EXPECT_EQ(mesh.tensor.rank(), mesh.coordinates.tensor_rank);
    EXPECT_EQ(mesh.pipeline.rank(), mesh.coordinates.stage);
    const auto members = [&](const comm::Communicator& group) {
      std::vector<int> ranks(static_cast<std::size_t>(group.size()));
      const int mine = world().rank();
      group.all_gather(std::as_bytes(std::span(&mine, 1)),
                       std::as_writable_bytes(std::span(ranks)));
      return ranks;
    };
    std::vector<int> data, tensor, pipeline;
    for (int i = 0; i < shape.data; ++i)
      data.push_back(rank_of(shape, {mesh.coordinates.stage, i, mesh.coordinates.tensor_rank}));
    for (int i = 0; i < shape.tensor; ++i)
      tensor.push_back(rank_of(shape, {mesh.coordinates.stage, mesh.coordinates.data_rank, i}));
    for (int i = 0; i < shape.pipeline; ++i)
      pipeline.push_back(
          rank_of(shape, {i, mesh.coordinates.data_rank, mesh.coordinates.tensor_rank}));
    EXPECT_EQ(members(mesh.data), data);
    EXPECT_EQ(members(mesh.delayed_data), data);
    EXPECT_EQ(members(mesh.tensor), tensor);
    EXPECT_EQ(members(mesh.pipeline), pipeline);

    std::vector<int> model, ends{world().rank()};
    for (int rank = 0; rank < world().size(); ++rank) {
      if (coordinates_of(shape, rank).data_rank == mesh.coordinates.data_rank)
        model.push_back(rank);
    }
    const int last = shape.pipeline - 1;
    if (last > 0 && (mesh.coordinates.stage == 0 || mesh.coordinates.stage == last)) {
      ends = {rank_of(shape, {0, mesh.coordinates.data_rank, mesh.coordinates.tensor_rank}),
              rank_of(shape, {last, mesh.coordinates.data_rank, mesh.coordinates.tensor_rank})};
    }
    EXPECT_EQ(members(mesh.model), model);
    EXPECT_EQ(members(mesh.tied_group), ends);

    const Mesh absent = Mesh::meta(shape, world().rank());
    for (const auto group : {&Mesh::world, &Mesh::data, &Mesh::tensor, &Mesh::pipeline,
                             &Mesh::model, &Mesh::tied_group, &Mesh::delayed_data}) {
      EXPECT_EQ((absent.*group).rank(), (mesh.*group).rank());
      EXPECT_EQ((absent.*group).size(), (mesh.*group).size());
    }
  }
}

TEST(Mesh, RanksThatJoinBatchNormAreNeighborsOfOneStage) {
  for (MeshShape shape : shapes_of(world().size())) {
    for (shape.batch_norm = 1; shape.batch_norm <= shape.data; ++shape.batch_norm) {
      if (shape.data % shape.batch_norm != 0) continue;
      const Mesh mesh(shape, world());
      std::vector<int> ranks(static_cast<std::size_t>(mesh.batch_norm.size())), expected;
      const int mine = world().rank(),
                first = mesh.coordinates.data_rank / shape.batch_norm * shape.batch_norm;
      mesh.batch_norm.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(ranks)));
      for (int i = first; i < first + shape.batch_norm; ++i)
        expected.push_back(
            rank_of(shape, {mesh.coordinates.stage, i, mesh.coordinates.tensor_rank}));
      EXPECT_EQ(ranks, expected);
      const Mesh absent = Mesh::meta(shape, world().rank());
      EXPECT_EQ(absent.batch_norm.rank(), mesh.batch_norm.rank());
      EXPECT_EQ(absent.batch_norm.size(), mesh.batch_norm.size());
    }
  }
}

TEST(Mesh, RefusesAProductThatIsNotTheWorld) {
  EXPECT_THAT(
      test::message_of<InputError>([&] { const Mesh mesh({world().size(), 2, 1}, world()); }),
      HasSubstr(std::to_string(2 * world().size()) + " ranks"));
}

}  // namespace
}  // namespace trireme::parallel
