#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::parallel {
namespace {

const comm::Communicator& world() { return test_environment().world(); }

/// A context with its arenas, on the CPU or on meta.
struct Place {
  explicit Place(DeviceKind kind)
      : device{kind, 0},
        memory(device, "memory", 4 << 20),
        workspace(device, "workspace", 1 << 20),
        library(device, "library", 1 << 10),
        context(Stream{device}, workspace, library) {}
  Tensor tensor(DType type, const Shape& shape) { return memory.allocate(type, shape); }
  /// Normal numbers, others on each rank: so that another order of additions shows.
  Tensor random(const Shape& shape, std::uint64_t seed) {
    const Tensor tensor = memory.allocate(DType::float32, shape);
    const std::uint64_t key = random_key(seed, "rank " + std::to_string(world().rank()));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.as<float>()[i] = static_cast<float>(normal_at(key, static_cast<std::uint64_t>(i)));
    return tensor;
  }

  Device device;
  Arena memory, workspace, library;
  ops::Context context;
};

class TensorGroups : public testing::TestWithParam<comm::SumOrder> {
 protected:
  TensorGroups() : engine(comm::Engine::Drive::polled), group(world(), engine, GetParam(), true), here(DeviceKind::cpu) {}
  comm::Engine engine;
  TensorGroup group;
  Place here;
};

TEST_P(TensorGroups, AllReduceAddsTheParts) {
  const Tensor x = here.tensor(DType::float32, {5, 7});
  for (std::int64_t i = 0; i < x.elements(); ++i) x.as<float>()[i] = static_cast<float>(i * (world().rank() + 1));  // whole numbers: exact in any order
  group.all_reduce(here.context, x);
  for (std::int64_t i = 0; i < x.elements(); ++i) EXPECT_EQ(x.as<float>()[i], static_cast<float>(i * world().size() * (world().size() + 1) / 2));
  EXPECT_EQ(here.workspace.used_bytes(), 0);
}

TEST_P(TensorGroups, ReduceScatterGivesEachRankItsRowsOfTheSum) {
  const std::int64_t rows = 6 * world().size();
  const Tensor sum = here.random({rows, 33}, 1), whole = here.random({rows, 33}, 1), part = here.tensor(DType::float32, {rows / world().size(), 33});
  group.all_reduce(here.context, sum);
  group.reduce_scatter_rows(here.context, whole, part);
  EXPECT_EQ(group.rows_held(rows), part.shape[0]);
  const Tensor expected = sum.rows(group.first_row_held(rows), group.first_row_held(rows) + group.rows_held(rows));
  if (GetParam() == comm::SumOrder::tree) {
    EXPECT_EQ(std::memcmp(part.data, expected.data, static_cast<std::size_t>(part.bytes())), 0) << "other bits than all_reduce gives";
  }
  // At most 3 additions of normal numbers (|x| < 6), each off by half a unit in the last place of a sum below 32, on both sides.
  for (std::int64_t i = 0; i < part.elements(); ++i) ASSERT_NEAR(part.as<float>()[i], expected.as<float>()[i], 6 * 32 * 0x1p-24) << i;
  EXPECT_EQ(here.workspace.used_bytes(), 0);
}

TEST_P(TensorGroups, GathersPartsOfAnyTypeInRankOrder) {
  for (const DType type : {DType::bfloat16, DType::float16, DType::float32, DType::int64, DType::uint8}) {
    const Tensor mine = here.tensor(type, {3, 5}), whole = here.tensor(type, {3 * world().size(), 5}), all = here.tensor(type, {world().size(), 3, 5});
    std::memset(mine.data, 17 + world().rank(), static_cast<std::size_t>(mine.bytes()));
    group.gather_rows(here.context, mine, whole);
    group.gather(here.context, mine, all);
    for (int rank = 0; rank < world().size(); ++rank) {
      const std::vector<unsigned char> expected(static_cast<std::size_t>(mine.bytes()), static_cast<unsigned char>(17 + rank));
      EXPECT_EQ(std::memcmp(whole.rows(3 * rank, 3 * rank + 3).data, expected.data(), expected.size()), 0) << to_string(type) << " of rank " << rank;
      EXPECT_EQ(std::memcmp(all.rows(rank, rank + 1).data, expected.data(), expected.size()), 0) << to_string(type) << " of rank " << rank;
    }
  }
}

// The same calls on meta: as much workspace, and the bytes that a ring would send; on a group of one none.
TEST_P(TensorGroups, MetaTakesTheSameWorkspaceAndCounts) {
  const std::int64_t size = world().size(), rows = 6 * size;
  const comm::Communicator absent = size == 1 ? comm::Communicator() : comm::Communicator::meta(world().rank(), world().size());
  const TensorGroup planned(absent, engine, GetParam(), true);
  Place there(DeviceKind::meta);
  const auto calls = [&](Place& place, const TensorGroup& ranks) {
    const Tensor whole = place.tensor(DType::float32, {rows, 11}), part = place.tensor(DType::float32, {6, 11});
    if (whole.data != nullptr) std::memset(whole.data, 0, static_cast<std::size_t>(whole.bytes()));
    ranks.all_reduce(place.context, whole);
    ranks.reduce_scatter_rows(place.context, whole, part);
    ranks.gather_rows(place.context, part, whole);
  };
  calls(here, group);
  calls(there, planned);
  EXPECT_EQ(there.workspace.peak_bytes(), here.workspace.peak_bytes());
  EXPECT_EQ(there.context.counters().bytes, here.context.counters().bytes);
  const double whole_bytes = 4.0 * 11 * static_cast<double>(rows);
  EXPECT_EQ(absent.meta_bytes(), size == 1 ? 0 : whole_bytes + 2 * whole_bytes * static_cast<double>(size - 1) / static_cast<double>(size));
}

INSTANTIATE_TEST_SUITE_P(Orders, TensorGroups, testing::Values(comm::SumOrder::library, comm::SumOrder::tree),
                         [](const auto& order) { return order.param == comm::SumOrder::tree ? "tree" : "library"; });

TEST(TensorGroup, OfOneCopies) {
  Place here(DeviceKind::cpu);
  const TensorGroup alone;
  const Tensor x = here.random({4, 3}, 2), y = here.tensor(DType::float32, {4, 3}), z = here.tensor(DType::float32, {1, 4, 3});
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rows_held(4), 4);
  alone.reduce_scatter_rows(here.context, x, y);
  alone.gather(here.context, y, z);
  const std::vector<float> before(x.as<float>(), x.as<float>() + 12);
  alone.all_reduce(here.context, x);
  EXPECT_EQ(std::memcmp(x.data, before.data(), 48), 0);
  EXPECT_EQ(std::memcmp(z.data, x.data, 48), 0);
}

}  // namespace
}  // namespace trireme::parallel
