// SPDX-License-Identifier: Apache-2.0
//
// TensorGroup, RowSum and RowGather at 1 to 4 ranks, in both orders: chunked exchanges equal whole
// ones, the number of chunks follows the limits, and meta needs the same workspace.

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/parallel/row_exchange.hpp"

namespace trireme::parallel {
namespace {

const comm::Communicator& world() { return test_environment().world(); }

/// A context with its arenas, on the CPU or on meta.
struct ContextFixture {
  explicit ContextFixture(DeviceKind kind)
      : device{kind, 0},
        memory(device, "memory", 4 << 20),
        workspace(device, "workspace", 1 << 20),
        library(device, "library", 1 << 10),
        context(Stream{device}, workspace, library) {}
  Tensor tensor(DType type, const Shape& shape) { return memory.allocate(type, shape); }
  /// Normal numbers that differ between ranks, for which another order of additions has other bits.
  Tensor random(const Shape& shape, std::uint64_t seed) {
    const Tensor tensor = memory.allocate(DType::float32, shape);
    const std::uint64_t key = random_key(seed, "rank " + std::to_string(world().rank()));
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      tensor.as<float>()[i] = static_cast<float>(normal_at(key, static_cast<std::uint64_t>(i)));
    return tensor;
  }

  Device device;
  Arena memory, workspace, library;
  ops::Context context;
};

class TensorGroups : public testing::TestWithParam<comm::SumOrder> {
 protected:
  TensorGroups()
      : engine(comm::Engine::ProgressMode::polled),
        group(world(), engine, GetParam(), true),
        here(DeviceKind::cpu) {}
  comm::Engine engine;
  TensorGroup group;
  ContextFixture here;
};

TEST_P(TensorGroups, AllReduceAddsTheParts) {
  const Tensor x = here.tensor(DType::float32, {5, 7});
  for (std::int64_t i = 0; i < x.elements(); ++i)
    // Whole numbers: exact in any order.
    x.as<float>()[i] = static_cast<float>(i * (world().rank() + 1));
  group.all_reduce(here.context, x);
  for (std::int64_t i = 0; i < x.elements(); ++i)
    EXPECT_EQ(x.as<float>()[i], static_cast<float>(i * world().size() * (world().size() + 1) / 2));
  EXPECT_EQ(here.workspace.used_bytes(), 0);
}

// With one chunk and with four the sums are the same.
TEST_P(TensorGroups, RowSumGivesEachRankItsRowsOfTheSum) {
  const std::int64_t rows = 4 * RowChunkLimits::row_multiple * world().size(), width = 33;
  for (const bool sequence : {true, false}) {
    for (const int chunks : {1, 4}) {
      SCOPED_TRACE(std::to_string(chunks) + (sequence ? " chunks in sequence" : " chunks"));
      const TensorGroup cut(world(), engine, GetParam(), sequence,
                            {.max_chunks = chunks, .min_rows = 1, .min_elements = 1});
      const Tensor expected = here.random({rows, width}, 1),
                   partial = here.random({rows, width}, 1);
      cut.all_reduce(here.context, expected);
      const ArenaScope scope(here.workspace);
      const Tensor held = RowSum::allocate_result(here.context, cut, partial);
      EXPECT_EQ(held.shape[0], cut.rows_held(rows));
      RowSum sum(here.context, cut, partial, held);
      EXPECT_EQ(sum.chunks(), world().size() > 1 ? chunks : 1);
      for (int number = 0; number < sum.chunks(); ++number) sum.begin(number);
      sum.wait();
      for (int number = 0; number < sum.chunks(); ++number) {
        const RowChunk chunk = sum.chunk(number);
        for (std::int64_t row = chunk.held_begin; row < chunk.held_end; ++row) {
          const std::int64_t among_all = chunk.first_held + row - chunk.held_begin;
          EXPECT_EQ(cut.locate_row(among_all, rows, width).row, row);
          EXPECT_EQ(cut.locate_row(among_all, rows, width).rank, world().rank());
          const float *mine = held.as<float>() + row * width,
                      *theirs = expected.as<float>() + among_all * width;
          if (GetParam() == comm::SumOrder::tree) {
            EXPECT_EQ(std::memcmp(mine, theirs, static_cast<std::size_t>(width) * sizeof(float)), 0)
                << "other bits than all_reduce gives";
          }
          // At most 3 additions of normal numbers (|x| < 6), each off by half a unit in the last
          // place of a sum below 32, on both sides.
          for (std::int64_t i = 0; i < width; ++i)
            ASSERT_NEAR(mine[i], theirs[i], 6 * 32 * 0x1p-24) << i;
        }
      }
    }
  }
  EXPECT_EQ(here.workspace.used_bytes(), 0);
}

// Each element contains its index in the whole matrix; all ranks must receive the whole matrix.
TEST_P(TensorGroups, RowGatherPutsEachPieceInItsPlace) {
  const std::int64_t rows = 4 * RowChunkLimits::row_multiple * world().size(), width = 3;
  for (const bool sequence : {true, false}) {
    for (const int chunks : {1, 2, 4}) {
      const TensorGroup cut(world(), engine, GetParam(), sequence,
                            {.max_chunks = chunks, .min_rows = 1, .min_elements = 1});
      const Tensor mine = here.tensor(DType::int32, {cut.rows_held(rows), width});
      const int pieces = cut.row_ranges_held(rows, width);
      EXPECT_EQ(pieces, sequence && world().size() > 1 ? chunks : 1);
      for (int piece = 0; piece < pieces; ++piece) {
        const RowChunk at = cut.chunk(piece, pieces, rows);
        for (std::int64_t i = at.held_begin * width; i < at.held_end * width; ++i)
          mine.as<std::int32_t>()[i] =
              static_cast<std::int32_t>(at.first_held * width + i - at.held_begin * width);
      }
      const ArenaScope scope(here.workspace);
      RowGather gather(here.context, cut, mine);
      for (int number = 0; number < gather.chunks(); ++number) {
        gather.wait(number);
        for (std::int64_t i = gather.chunk(number).begin * width;
             i < gather.chunk(number).end * width; ++i)
          ASSERT_EQ(gather.whole().as<std::int32_t>()[i], static_cast<std::int32_t>(i));
      }
      EXPECT_EQ(gather.whole().data == mine.data,
                cut.row_ranges_held(rows, width) == 1 && !cut.rows_are_split());
    }
  }
}

// The largest number of chunks within the limits; one chunk if a rank's part would not be a
// multiple of row_multiple.
TEST(TensorGroup, CutsRowsIntoAsManyChunksAsTheBoundsAllow) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  const auto chunks = [&](int size, std::int64_t rows, std::int64_t columns) {
    return TensorGroup(comm::Communicator::meta(0, size), engine, comm::SumOrder::library, true)
        .chunks(rows, columns);
  };
  const RowChunkLimits cut;
  EXPECT_EQ(chunks(2, 4 * 2048, 1024), 4);
  EXPECT_EQ(chunks(2, 3 * 2048, 1024), 3);
  EXPECT_EQ(chunks(2, 2048, 1024), 1);
  EXPECT_EQ(chunks(2, 2 * 2048, 1024), 2);
  EXPECT_EQ(chunks(2, 2 * 2048 - 16, 1024), 1);
  EXPECT_EQ(chunks(8, 4 * cut.min_rows, 1 << 20), 4);
  EXPECT_EQ(chunks(8, 4 * cut.min_rows - 64, 1 << 20), 3);
  EXPECT_EQ(chunks(8, 4 * cut.min_rows + 8, 1 << 20), 1);
  EXPECT_EQ(TensorGroup().chunks(1 << 20, 1 << 20), 1);
}

TEST_P(TensorGroups, GathersPartsOfAnyTypeInRankOrder) {
  for (const DType type :
       {DType::bfloat16, DType::float16, DType::float32, DType::int64, DType::uint8}) {
    const Tensor mine = here.tensor(type, {3, 5}), all = here.tensor(type, {world().size(), 3, 5});
    std::memset(mine.data, 17 + world().rank(), static_cast<std::size_t>(mine.bytes()));
    group.gather(here.context, mine, all);
    for (int rank = 0; rank < world().size(); ++rank) {
      const std::vector<unsigned char> expected(static_cast<std::size_t>(mine.bytes()),
                                                static_cast<unsigned char>(17 + rank));
      EXPECT_EQ(std::memcmp(all.rows(rank, rank + 1).data, expected.data(), expected.size()), 0)
          << to_string(type) << " of rank " << rank;
    }
  }
}

// On meta the same calls need the same workspace and count the bytes that a ring would send; none
// for a group of one.
TEST_P(TensorGroups, MetaTakesTheSameWorkspaceAndCounts) {
  const std::int64_t size = world().size(), rows = 6 * size;
  const comm::Communicator absent =
      size == 1 ? comm::Communicator() : comm::Communicator::meta(world().rank(), world().size());
  const TensorGroup planned(absent, engine, GetParam(), true);
  ContextFixture there(DeviceKind::meta);
  const auto calls = [&](ContextFixture& place, const TensorGroup& ranks) {
    const Tensor whole = place.tensor(DType::float32, {rows, 11});
    if (whole.data != nullptr) std::memset(whole.data, 0, static_cast<std::size_t>(whole.bytes()));
    ranks.all_reduce(place.context, whole);
    const ArenaScope scope(place.workspace);
    const Tensor held = RowSum::allocate_result(place.context, ranks, whole);
    RowSum sum(place.context, ranks, whole, held);
    sum.begin(0);
    sum.wait();
    RowGather gather(place.context, ranks, held);
    gather.wait();
  };
  calls(here, group);
  calls(there, planned);
  EXPECT_EQ(there.workspace.peak_bytes(), here.workspace.peak_bytes());
  EXPECT_EQ(there.context.counters().bytes, here.context.counters().bytes);
  const double whole_bytes = 4.0 * 11 * static_cast<double>(rows);
  EXPECT_EQ(absent.meta_bytes(), size == 1 ? 0
                                           : whole_bytes + 2 * whole_bytes *
                                                               static_cast<double>(size - 1) /
                                                               static_cast<double>(size));
}

INSTANTIATE_TEST_SUITE_P(Orders, TensorGroups,
                         testing::Values(comm::SumOrder::library, comm::SumOrder::tree),
                         [](const auto& order) {
                           return order.param == comm::SumOrder::tree ? "tree" : "library";
                         });

TEST(TensorGroup, OfOneSendsNothing) {
  ContextFixture here(DeviceKind::cpu);
  const TensorGroup alone;
  const Tensor x = here.random({4, 3}, 2), z = here.tensor(DType::float32, {1, 4, 3});
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rows_held(4), 4);
  RowSum sum(here.context, alone, x, RowSum::allocate_result(here.context, alone, x));
  sum.begin(0);
  sum.wait();
  alone.gather(here.context, x, z);
  const std::vector<float> before(x.as<float>(), x.as<float>() + 12);
  alone.all_reduce(here.context, x);
  EXPECT_EQ(std::memcmp(x.data, before.data(), 48), 0);
  EXPECT_EQ(std::memcmp(z.data, x.data, 48), 0);
}

}  // namespace
}  // namespace trireme::parallel
