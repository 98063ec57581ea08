#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/parallel/tree.hpp"

namespace trireme::comm {
namespace {

// 1, odd, prime; around the size where whole vectors give way to halves (4096), and past the eager messages of MPI.
const std::vector<std::int64_t> sizes{1, 2, 3, 31, 1009, 4095, 4096, 4097, 20011, 300007};

const Communicator& world() { return test_environment().world(); }

/// Part of `rank`: normal numbers, so that another order of additions shows.
std::vector<float> part_of(int rank, std::int64_t count, std::uint64_t seed) {
  std::vector<float> part(static_cast<std::size_t>(count));
  const std::uint64_t key = random_key(seed, "part " + std::to_string(rank));
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(normal_at(key, i));
  return part;
}

/// What tree order promises, made on this rank alone.
std::vector<float> expected_sum(int ranks, std::int64_t count, std::uint64_t seed) {
  std::vector<std::vector<float>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(part_of(rank, count, seed));
  const bool power_of_two = (ranks & (ranks - 1)) == 0;
  std::vector<float> sum(static_cast<std::size_t>(count)), column(parts.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) column[rank] = parts[rank][i];
    sum[i] = column[0];
    for (std::size_t rank = 1; rank < parts.size(); ++rank) sum[i] += column[rank];
    if (power_of_two) sum[i] = parallel::tree_sum(std::span<const float>(column));
  }
  return sum;
}

class EngineDrives : public testing::TestWithParam<Engine::Drive> {};

TEST_P(EngineDrives, TreeSumIsTheSumOfTheParts) {
  Engine engine(GetParam());
  for (const std::int64_t count : sizes) {
    std::vector<float> data = part_of(world().rank(), count, 1), scratch(data.size());
    engine.wait(engine.all_reduce(world(), data.data(), scratch.data(), count, SumOrder::tree, "test"));
    const std::vector<float> expected = expected_sum(world().size(), count, 1);
    EXPECT_EQ(std::memcmp(data.data(), expected.data(), data.size() * sizeof(float)), 0) << count << " floats: other bits than the sum in one place";
  }
}

TEST_P(EngineDrives, LibrarySumAgreesWithinRounding) {
  Engine engine(GetParam());
  for (const std::int64_t count : sizes) {
    std::vector<float> data = part_of(world().rank(), count, 2);
    engine.wait(engine.all_reduce(world(), data.data(), nullptr, count, SumOrder::library, "test"));
    const std::vector<float> expected = expected_sum(world().size(), count, 2);
    for (std::size_t i = 0; i < data.size(); ++i) {
      // Two orders of n - 1 additions of normal numbers (< 6): each is off by at most (n - 1) half units in the last place of partial sums < 6 n.
      const float bound = 2.0f * static_cast<float>(world().size()) * 6.0f * static_cast<float>(world().size()) * 0x1p-24f;
      ASSERT_NEAR(data[i], expected[i], bound) << i;
    }
  }
}

TEST_P(EngineDrives, ManyAtOnceInBothOrdersAndGroups) {
  Engine engine(GetParam());
  const Communicator turned = world().split(0, -world().rank());
  const int requests = 40;  // several windows
  std::vector<std::vector<float>> data, scratch;
  std::vector<Engine::Ticket> tickets;
  for (int i = 0; i < requests; ++i) {
    data.push_back(part_of(world().rank(), sizes[static_cast<std::size_t>(i) % sizes.size()], static_cast<std::uint64_t>(i)));
    scratch.emplace_back(data.back().size());
  }
  for (int i = 0; i < requests; ++i) {
    const auto at = static_cast<std::size_t>(i);
    tickets.push_back(engine.all_reduce(i % 3 == 0 ? turned : world(), data[at].data(), scratch[at].data(), static_cast<std::int64_t>(data[at].size()),
                                        i % 4 == 3 ? SumOrder::library : SumOrder::tree, "test"));
    engine.progress();
    if (i % 7 == 0) world().barrier();  // the main thread's own traffic does not meet the engine's
  }
  engine.wait(tickets[5]);
  engine.quiesce();
  EXPECT_TRUE(engine.describe().empty());
  for (int i = 0; i < requests; ++i) {
    const std::vector<float>& sum = data[static_cast<std::size_t>(i)];
    const std::vector<float> expected = expected_sum(world().size(), static_cast<std::int64_t>(sum.size()), static_cast<std::uint64_t>(i));
    for (std::size_t k = 0; k < sum.size(); ++k) ASSERT_NEAR(sum[k], expected[k], 1e-4) << "request " << i << ", element " << k;  // an element of another request is off by 1
  }
}

TEST_P(EngineDrives, SaysWhatIsUnderWay) {
  if (world().size() == 1) return;
  Engine engine(GetParam());
  std::vector<float> data(10, 1.0f), scratch(10);
  const Engine::Ticket ticket = world().rank() == 0 ? engine.all_reduce(world(), data.data(), scratch.data(), 10, SumOrder::tree, "trireme/test/label") : 0;
  if (world().rank() == 0) {
    const std::vector<std::string> lines = engine.describe();
    ASSERT_EQ(lines.size(), 1u);  // the others have not asked yet
    EXPECT_NE(lines[0].find("trireme/test/label: 10 floats"), std::string::npos) << lines[0];
  }
  world().barrier();
  if (world().rank() != 0) engine.all_reduce(world(), data.data(), scratch.data(), 10, SumOrder::tree, "trireme/test/label");
  engine.wait(ticket);
  engine.quiesce();
  EXPECT_EQ(data[9], static_cast<float>(world().size()));
  EXPECT_GT(engine.bytes_sent(), 0);
  EXPECT_GE(engine.waited_seconds(), 0);
}

TEST_P(EngineDrives, SteadyStepsAllocateNothing) {
  Engine engine(GetParam());
  std::vector<float> data = part_of(world().rank(), 20011, 3), scratch(data.size());
  const auto step = [&] {
    Engine::Ticket last = 0;
    for (int bucket = 0; bucket < 10; ++bucket) {
      const std::int64_t begin = bucket * 2001;
      last = engine.all_reduce(world(), data.data() + begin, scratch.data() + begin, 2001, bucket % 2 == 0 ? SumOrder::tree : SumOrder::library, "test");
      engine.progress();
    }
    engine.wait(last);
  };
  step();
  world().barrier();
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < 100; ++i) step();  // past the end of the ring of requests as well
  EXPECT_EQ(allocations_so_far() - before, 0);
}

TEST_P(EngineDrives, GroupsOfOneAndAbsentGroupsAreDoneAtOnce) {
  Engine engine(GetParam());
  std::vector<float> data{1, 2, 3};
  engine.wait(engine.all_reduce(Communicator(), data.data(), nullptr, 3, SumOrder::tree, "test"));
  const Communicator absent = Communicator::meta(0, 16);
  engine.wait(engine.all_reduce(absent, nullptr, nullptr, 1000, SumOrder::tree, "test"));
  EXPECT_EQ(absent.meta_bytes(), 4000);
  EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(engine.bytes_sent(), 0);
}

INSTANTIATE_TEST_SUITE_P(Drives, EngineDrives, testing::Values(Engine::Drive::polled, Engine::Drive::thread),
                         [](const auto& drive) { return drive.param == Engine::Drive::thread ? "thread" : "polled"; });

TEST(Engine, HasAThreadWhereMpiAllowsIt) {
  EXPECT_EQ(Engine(Engine::Drive::thread).drive(), test_environment().threads() ? Engine::Drive::thread : Engine::Drive::polled);
  EXPECT_EQ(Engine(Engine::Drive::polled).drive(), Engine::Drive::polled);
}

}  // namespace
}  // namespace trireme::comm
