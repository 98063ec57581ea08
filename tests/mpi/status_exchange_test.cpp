// SPDX-License-Identifier: Apache-2.0
//
// The status exchange and the reports of ranks at 1, 2 and 4 ranks, on host memory and on an
// emulated device:
// - sums have the bits of one process that adds the statuses of the last stage by halving;
// - a flag of one rank reaches all ranks, and unreadable samples make the loss NaN;
// - reports arrive while other requests of the world are under way.

#include "trireme/train/step/status_exchange.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi.hpp"
#include "train/supervision/rank_reports.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/tree.hpp"

namespace trireme::train {
namespace {

using ops::SampleSums;
using parallel::MeshShape;

const comm::Communicator& world() { return test_environment().world(); }

std::vector<MeshShape> shapes() {
  const int ranks = world().size();
  std::vector<MeshShape> list{{.data = ranks}, {.tensor = ranks}, {.pipeline = ranks}};
  if (ranks == 4) {
    list.push_back({.data = 2, .tensor = 2});
    list.push_back({.data = 2, .pipeline = 2});
    list.push_back({.tensor = 2, .pipeline = 2});
  }
  return list;
}

/// Returns numbers of a data rank whose sum depends on the order of the additions.
std::vector<SampleSums> sums_of(int data_rank, std::uint64_t step) {
  std::vector<SampleSums> sums(3);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto number = [&](std::uint64_t column) {
      return std::exp(6 * normal_at(random_key(step, std::to_string(data_rank)), 4 * i + column));
    };
    sums[i] = {number(0), number(1), number(2), number(3)};
  }
  return sums;
}

class Exchange : public testing::TestWithParam<DeviceKind> {
 protected:
  /// One rank with the memory that an exchange needs.
  struct Fixture {
    Fixture(DeviceKind kind, const MeshShape& shape)
        : mesh(shape, world()),
          stream(Device{kind, 0}),
          memory(Device{kind, 0}, "batches", 1 << 16),
          library(Device{kind, 0}, "library", 1 << 12),
          context(stream, memory, library) {
      engine.attach_device(stream);
    }

    bool is_last_stage() const { return mesh.coordinates.stage == mesh.shape.pipeline - 1; }
    void post(StatusExchange& exchange, std::uint64_t step, std::uint64_t requests,
              double squares) {
      Tensor sums;
      if (is_last_stage()) {
        const std::vector<SampleSums> mine = sums_of(mesh.coordinates.data_rank, step);
        sums = memory.allocate(DType::float64, {std::ssize(mine), 4});
        copy_bytes(stream, sums.data, mine.data(), mine.size() * sizeof(SampleSums));
      }
      const Tensor measured = memory.allocate(DType::float64, {1});
      copy_bytes(stream, measured.data, &squares, sizeof squares);
      exchange.post(context, sums, requests, static_cast<const double*>(measured.data));
      synchronize(stream);
    }
    SampleSums on_device(const StatusExchange& exchange) {
      SampleSums sums;
      copy_bytes(stream, &sums, exchange.sums(), sizeof sums);
      synchronize(stream);
      return sums;
    }

    parallel::Mesh mesh;
    comm::Engine engine{comm::Engine::ProgressMode::polled};
    OwnedStream stream;
    Arena memory, library;
    ops::Context context;
  };
};

TEST_P(Exchange, HasTheBitsOfOneProcess) {
  for (const MeshShape& shape : shapes()) {
    SCOPED_TRACE(testing::Message()
                 << shape.data << " x " << shape.tensor << " x " << shape.pipeline);
    Fixture f(GetParam(), shape);
    StatusExchange exchange(f.mesh, f.engine, f.stream.get().device, f.memory);
    // Two exchanges may be in flight.
    for (const std::uint64_t step : {1, 2}) f.post(exchange, step, 0, 0.5);
    for (const std::uint64_t step : {1, 2}) {
      std::vector<SampleSums> replicas;
      for (int data = 0; data < shape.data; ++data)
        replicas.push_back(tree_sum(std::span<const SampleSums>(sums_of(data, step))));
      const SampleSums expected = tree_sum(std::span<const SampleSums>(replicas));
      const ops::StepTotals totals = exchange.wait();
      EXPECT_EQ(std::memcmp(&totals.sums, &expected, sizeof expected), 0);
      EXPECT_EQ(totals.gradient_squares, 0.5 * shape.ranks());
      EXPECT_EQ(totals.stop_requests, 0u);
      if (step == 1) continue;
      const SampleSums found = f.on_device(exchange);
      EXPECT_EQ(std::memcmp(&found, &expected, sizeof expected), 0);
    }
    f.engine.quiesce();
    world().barrier();
  }
}

TEST_P(Exchange, FlagsOfOneRankReachAllRanks) {
  for (const MeshShape& shape : shapes()) {
    Fixture f(GetParam(), shape);
    StatusExchange exchange(f.mesh, f.engine, f.stream.get().device, f.memory);
    for (int raising = 0; raising < world().size(); ++raising) {
      for (const std::uint64_t flag : {flag_stop, flag_checkpoint, flag_saving, flag_unreadable}) {
        const std::uint64_t mine = flag_finish | (world().rank() == raising ? flag : 0);
        f.post(exchange, 3, mine, 0);
        const ops::StepTotals totals = exchange.wait();
        EXPECT_EQ(totals.stop_requests, flag_finish | flag) << raising;
        EXPECT_EQ(std::isnan(totals.sums.loss), flag == flag_unreadable) << raising;
        EXPECT_EQ(std::isnan(f.on_device(exchange).loss), flag == flag_unreadable) << raising;
        EXPECT_FALSE(std::isnan(totals.sums.count));
      }
    }
    f.engine.quiesce();
    world().barrier();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Exchange, testing::Values(DeviceKind::cpu, DeviceKind::emulated));

TEST(RankReports, TheLargestMemoryIsThatOfAnyRank) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  RankReports reports(world(), engine);
  const int ranks = world().size(), mine = world().rank();
  // The first rank has the most of the host, the last one of its device; the others know no device.
  reports.post({.device_bytes = mine == ranks - 1 ? 70 : -1, .host_bytes = 100 - mine});
  const MemoryInUse largest = figures_of(reports.wait()).memory;
  EXPECT_EQ(largest.device_bytes, 70);
  EXPECT_EQ(largest.host_bytes, 100);
  reports.post({.host_bytes = 100 + mine});
  const MemoryInUse without_device = figures_of(reports.wait()).memory;
  EXPECT_FALSE(without_device.device_bytes);
  EXPECT_EQ(without_device.host_bytes, 99 + ranks);
  engine.quiesce();
  world().barrier();
}

TEST(RankReports, ArriveWhileOtherRequestsAreUnderWay) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  RankReports reports(world(), engine);
  const comm::RankAxis axis{world().size(), 1};
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(reports.are_under_way());
    reports.post({.busy_seconds = 10.0 * round + world().rank(), .step_seconds = 2});
    EXPECT_TRUE(reports.are_under_way());
    double value = 1, scratch = 0;
    engine.wait(engine.all_reduce(world(), &value, &scratch, 1, std::span(&axis, 1), "test"));
    EXPECT_EQ(value, world().size());
    const std::span<const RankReport> found = reports.wait();
    ASSERT_EQ(std::ssize(found), world().size());
    for (int rank = 0; rank < world().size(); ++rank) {
      EXPECT_EQ(found[static_cast<std::size_t>(rank)].busy_seconds, 10.0 * round + rank);
      EXPECT_EQ(found[static_cast<std::size_t>(rank)].step_seconds, 2);
    }
  }
  engine.quiesce();
  world().barrier();
}

}  // namespace
}  // namespace trireme::train
