// SPDX-License-Identifier: Apache-2.0
//
// Engine at 1 to 4 ranks, with and without its own thread, on host memory and on an emulated
// device:
// - requests of several groups do not block each other, and long requests are cut into pieces;
// - steps allocate nothing, bytes and spans are counted, pending requests are described.
// See engine_sums_test.cpp for the results of collectives, engine_messages_test.cpp for messages.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cross_rank_flag.hpp"
#include "engine_fixture.hpp"
#include "support/count_allocations.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

TEST_P(EngineFixture, ManyAtOnceInBothOrdersAndGroups) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const Communicator turned = world().split(0, -world().rank());
  const int requests = 40;  // several times max_started_collectives
  std::vector<DeviceArray<float>> data, scratch;
  std::vector<Engine::Request> requested;
  for (int i = 0; i < requests; ++i) {
    data.push_back(area(part_of(world().rank(), sizes[static_cast<std::size_t>(i) % sizes.size()],
                                static_cast<std::uint64_t>(i))));
    scratch.push_back(room(data.back().size()));
  }
  for (int i = 0; i < requests; ++i) {
    const auto at = static_cast<std::size_t>(i);
    requested.push_back(engine.all_reduce(i % 3 == 0 ? turned : world(), data[at].data(),
                                          scratch[at].data(), data[at].size(),
                                          i % 4 == 3 ? SumOrder::library : SumOrder::tree, "test"));
    engine.progress();
    // The main thread's own messages must not match those of the engine.
    if (i % 7 == 0) world().barrier();
  }
  engine.wait(requested[5]);
  engine.quiesce();
  EXPECT_TRUE(engine.describe().empty());
  for (int i = 0; i < requests; ++i) {
    const std::vector<float> sum = data[static_cast<std::size_t>(i)].values();
    const std::vector<float> expected = expected_sum(
        world().size(), static_cast<std::int64_t>(sum.size()), static_cast<std::uint64_t>(i));
    for (std::size_t k = 0; k < sum.size(); ++k)
      ASSERT_NEAR(sum[k], expected[k], 1e-4)
          // An element of another request differs by about 1.
          << "request " << i << ", element " << k;
  }
}

TEST_P(EngineFixture, DescribesPendingRequests) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const DeviceArray<float> data = area(std::vector<float>(10, 1.0f)), scratch = room(10);
  const Engine::Request request =
      world().rank() == 0 ? engine.all_reduce(world(), data.data(), scratch.data(), 10,
                                              SumOrder::tree, {"trireme/test/label", {"bucket", 3}})
                          : 0;
  if (world().rank() == 0) {
    const std::vector<std::string> lines = engine.describe();
    ASSERT_EQ(lines.size(), 1u);  // no other rank has submitted its request yet
    EXPECT_THAT(lines[0],
                HasSubstr("all_reduce 1 trireme/test/label, bucket 3: 40 bytes over group world (" +
                          std::to_string(world().size()) + " ranks), tree order; "));
  }
  world().barrier();
  if (world().rank() != 0)
    engine.all_reduce(world(), data.data(), scratch.data(), 10, SumOrder::tree,
                      "trireme/test/label");
  engine.wait(request);
  engine.quiesce();
  EXPECT_EQ(data.values()[9], static_cast<float>(world().size()));
  EXPECT_GT(engine.bytes_sent(), 0);
  EXPECT_GE(engine.waited_seconds(), 0);
}

// Rank 0 submits more sums than may be under way at once. The other ranks submit none, so that the
// first ones stay blocked and the others stay queued.
TEST_P(EngineFixture, DistinguishesQueuedRequestsFromBlockedOnes) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const Communicator group = world().split(0, -world().rank(), "data");
  const int requests = 20, max_started = 8;
  const DeviceArray<float> data = area(std::vector<float>(requests, 1.0f)),
                           scratch = room(requests);
  const auto submit = [&] {
    for (int i = 0; i < requests; ++i)
      engine.all_reduce(group, data.data() + i, scratch.data() + i, 1, SumOrder::tree, "test");
  };
  if (world().rank() == 0) {
    submit();
    const auto number = [&](std::string_view state) {
      const std::vector<std::string> lines = engine.describe();
      EXPECT_EQ(std::ssize(lines), requests);
      return std::count_if(lines.begin(), lines.end(),
                           [&](const std::string& line) { return line.ends_with(state); });
    };
    while (number("; queued") > requests - max_started) engine.progress();
    EXPECT_EQ(number("; queued"), requests - max_started);
    EXPECT_EQ(number(engine.progress_mode() == Engine::ProgressMode::thread ? "; blocked on peers"
                                                                            : "; not polled"),
              max_started);
    // The group lists its ranks in its own order.
    EXPECT_THAT(engine.describe().front(),
                HasSubstr("over group data (world ranks " + std::to_string(world().size() - 1)));
  }
  world().barrier();
  if (world().rank() != 0) submit();
  engine.quiesce();
  EXPECT_EQ(data.values().back(), static_cast<float>(world().size()));
}

// Rank 0 waits for its second request, while another thread looks. Rank 1 sends after that.
TEST_P(EngineFixture, NamesTheRequestForWhichItWaits) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const CrossRankFlag seen(world());
  const DeviceArray<std::byte> first = area(bytes_of(100, 0)), second = area(bytes_of(100, 0));
  EXPECT_FALSE(engine.current_wait());
  if (world().rank() == 0) {
    engine.receive(world(), first.span(), 1, 7, "test");
    const Engine::Request waited =
        engine.receive(world(), second.span(), 1, 8, {"test", {"micro-batch", 5}, {"chunk", 2}});
    std::optional<PeerWait> wait;
    std::thread observer([&] {
      while (!wait || wait->is_queued) wait = engine.current_wait();
      seen.raise();
    });
    engine.wait(waited);
    observer.join();
    EXPECT_EQ(
        wait->operation,
        "receive 2 test, micro-batch 5, chunk 2: 100 bytes from rank 1 of group world, tag 8");
    EXPECT_GE(wait->seconds, 0);
  }
  if (world().rank() == 1) {
    seen.wait();
    engine.send(world(), first.span(), 0, 7, "test");
    engine.send(world(), second.span(), 0, 8, "test");
  }
  engine.quiesce();
  EXPECT_FALSE(engine.current_wait());
}

// Each pair of ranks is a group, and each rank submits to its groups in another order. One queue
// for all groups, or a small pool of places shared by groups, would deadlock.
TEST_P(EngineFixture, GroupsAreIndependent) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank(), each = 30;
  std::vector<Communicator> pairs;
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      const Communicator pair = world().split(rank == a || rank == b ? 0 : -1, rank);
      if (rank == a || rank == b) pairs.push_back(pair);
      EXPECT_EQ(pair.size(), rank == a || rank == b ? 2 : 1);
    }
  }
  if (rank % 2 == 1) std::reverse(pairs.begin(), pairs.end());
  if (!pairs.empty())
    std::rotate(pairs.begin(), pairs.begin() + rank % std::ssize(pairs), pairs.end());
  const auto requests = static_cast<int>(pairs.size()) * each;
  std::vector<float> values;
  for (int i = 0; i < requests; ++i)
    values.insert(values.end(), 3000, static_cast<float>(i % each));
  const DeviceArray<float> data = area(values), scratch = room(data.size());
  std::vector<Engine::Request> requested;
  for (int i = 0; i < requests; ++i) {
    requested.push_back(engine.all_reduce(pairs[static_cast<std::size_t>(i / each)],
                                          data.data() + 3000 * i, scratch.data() + 3000 * i, 3000,
                                          i % 2 == 0 ? SumOrder::tree : SumOrder::library, "test"));
  }
  for (int i = requests; i-- > 0;) engine.wait(requested[static_cast<std::size_t>(i)]);
  values = data.values();
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(2 * (i / 3000 % each))) << "request " << i / 3000;
  world().barrier();
}

// A small limit for one MPI call: every request takes many calls.
TEST_P(EngineFixture, LongRequestsGoInPieces) {
  Engine engine(progress_mode(), 1000);
  engine.attach_device(stream());
  const std::int64_t count = 20011;
  const int size = world().size(), rank = world().rank();
  const std::vector<float> expected = expected_sum(size, count, 6);
  const std::vector<float> part = part_of(rank, count, 6);
  const DeviceArray<float> tree = area(part), by_library = area(part), scattered = area(part),
                           scratch = room(count), more_scratch = room(count);
  const std::vector<std::int64_t> bounds = bounds_of(size, count)[1];
  const DeviceArray<float> own =
      room(bounds[static_cast<std::size_t>(rank) + 1] - bounds[static_cast<std::size_t>(rank)]);
  std::vector<std::byte> bytes = bytes_of(count, 0);
  std::fill(bytes.begin(), bytes.begin() + bounds[static_cast<std::size_t>(rank)], std::byte{0});
  std::fill(bytes.begin() + bounds[static_cast<std::size_t>(rank) + 1], bytes.end(), std::byte{0});
  const DeviceArray<std::byte> gathered = area(bytes), sent = area(bytes_of(5500, rank)),
                               received = area(bytes_of(2 * 5500, 0));
  if (size > 1) {
    for (std::size_t i = 0; i < 2; ++i) {
      engine.send(world(), sent.span(), (rank + 1) % size, 1, "test");
      engine.receive(world(), received.span().subspan(i * 5500, 5500), (rank + size - 1) % size, 1,
                     "test");
    }
  }
  engine.all_reduce(world(), by_library.data(), nullptr, count, SumOrder::library, "test");
  engine.all_reduce(world(), tree.data(), scratch.data(), count, SumOrder::tree, "test");
  engine.reduce_scatter(world(), scattered.data(), more_scratch.data(), bounds, own.data(),
                        SumOrder::tree, "test");
  engine.all_gather(world(), gathered.data(), bounds, "test");
  engine.quiesce();
  const std::vector<float> library = by_library.values(), result = own.values();
  EXPECT_EQ(tree.values(), expected);
  for (std::size_t i = 0; i < library.size(); ++i)
    // Another element differs by about 1.
    ASSERT_NEAR(library[i], expected[i], 1e-4) << i;
  EXPECT_TRUE(std::equal(result.begin(), result.end(),
                         expected.begin() + bounds[static_cast<std::size_t>(rank)]));
  EXPECT_EQ(gathered.values(), bytes_of(count, 0));
  if (size == 1) return;
  std::vector<std::byte> due = bytes_of(5500, (rank + size - 1) % size);
  due.insert(due.end(), due.begin(), due.begin() + 5500);
  EXPECT_EQ(received.values(), due);
}

TEST_P(EngineFixture, SteadyStepsAllocateNothing) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank();
  const DeviceArray<float> data = area(part_of(rank, 20011, 3)), scratch = room(20011),
                           result = room(2 * 2001);
  const DeviceArray<std::byte> bytes = area(bytes_of(2001, 0)), sent = area(bytes_of(5000, 1)),
                               received = area(bytes_of(5000, 2));
  const std::vector<std::int64_t> bounds = bounds_of(size, 2001)[0];
  const auto step = [&] {
    if (size > 1) {
      engine.receive(world(), received.span(), (rank + 1) % size, 1, "test");
      engine.send(world(), sent.span(), (rank + size - 1) % size, 1, "test");
    }
    for (int bucket = 0; bucket < 10; ++bucket) {
      const std::int64_t begin = bucket * 2001;
      const SumOrder order = bucket % 2 == 0 ? SumOrder::tree : SumOrder::library;
      if (bucket < 8)
        engine.all_reduce(world(), data.data() + begin, scratch.data() + begin, 2001, order,
                          "test");
      else
        engine.reduce_scatter(world(), data.data() + begin, scratch.data() + begin, bounds,
                              result.data() + 2001 * (bucket - 8), order, "test");
      engine.progress();
    }
    engine.all_gather(world(), bytes.data(), bounds, "test");
    engine.quiesce();
  };
  step();
  world().barrier();  // no rank has sent anything before this point
  const std::int64_t before = allocations_so_far();
  const std::size_t staging_before = engine.staging_bytes();
  for (int i = 0; i < 100; ++i) step();  // reuses every slot
  // The emulated device itself allocates memory for its copies.
  if (on_host()) {
    EXPECT_EQ(allocations_so_far() - before, 0);
  }
  EXPECT_EQ(engine.staging_bytes(), staging_before);
  EXPECT_EQ(staging_before > 0, !on_host() && size > 1);
}

TEST_P(EngineFixture, GroupsOfOneAndAbsentGroupsAreDoneAtOnce) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const DeviceArray<float> data = area<float>({1, 2, 3}), result = room(2);
  engine.wait(engine.all_reduce(Communicator(), data.data(), nullptr, 3, SumOrder::tree, "test"));
  EXPECT_EQ(
      engine.reduce_scatter(Communicator(), data.data(), nullptr, std::vector<std::int64_t>{1, 3},
                            result.data(), SumOrder::tree, "test"),
      0u);
  EXPECT_EQ(result.values(), (std::vector<float>{2, 3}));
  EXPECT_EQ(engine.all_gather(Communicator(), reinterpret_cast<std::byte*>(data.data()),
                              std::vector<std::int64_t>{0, 12}, "test"),
            0u);
  EXPECT_EQ(engine.reduce_scatter(Communicator(), nullptr, nullptr, std::vector<std::int64_t>{0, 7},
                                  nullptr, SumOrder::tree, "test"),
            0u);  // a plan's group of one
  EXPECT_EQ(data.values(), (std::vector<float>{1, 2, 3}));

  const auto counted = [&](auto&& request) {
    const Communicator absent = Communicator::meta(2, 4);
    EXPECT_EQ(request(absent), 0u);
    return absent.meta_bytes();
  };
  const std::vector<std::int64_t> bounds{100, 100, 300, 700, 1100};  // 1000 elements or bytes
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.all_reduce(absent, nullptr, nullptr, 1000, SumOrder::tree, "test");
            }),
            4000);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.reduce_scatter(absent, nullptr, nullptr, bounds, nullptr,
                                           SumOrder::tree, "test");
            }),
            3000);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.all_gather(absent, nullptr, bounds, "test");
            }),
            750);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.send(absent, {static_cast<const std::byte*>(nullptr), 500}, 1, 1,
                                 "test");
            }),
            500);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.receive(absent, {static_cast<std::byte*>(nullptr), 500}, 1, 1, "test");
            }),
            0);
  EXPECT_EQ(engine.bytes_sent(), 0);
}

TEST_P(EngineFixture, CountsTheBytesItSends) {
  const int size = world().size(), rank = world().rank();
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const DeviceArray<std::byte> data = area(bytes_of(100 * size, 0));
  engine.wait(engine.all_gather(world(), data.data(), bounds_of(size, 100 * size)[0], "test"));
  EXPECT_EQ(engine.bytes_sent(), 100 * (size - 1));
  if (size > 1 && rank < 2)
    engine.wait(rank == 0 ? engine.send(world(), data.span(), 1, 0, "test")
                          : engine.receive(world(), data.span(), 0, 0, "test"));
  EXPECT_EQ(engine.bytes_sent(), 100 * (size - 1) + (size > 1 && rank == 0 ? 100 * size : 0));
}

// On a device, a request includes the earlier work of the compute stream, and later work after
// wait() sees its result, although its copies use other streams. A request on host memory does not
// overtake one of its group that is still being copied from the device.
TEST_P(EngineFixture, MemoryOfHostAndDeviceTakeTurns) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const std::int64_t count = 50000;
  const DeviceArray<float> data = room(count), copy = room(count);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> first(static_cast<std::size_t>(count), static_cast<float>(round)),
        second(100, static_cast<float>(2 * round));
    copy_bytes(stream(), data.data(), first.data(), first.size() * sizeof(float));
    const Engine::Request large =
        engine.all_reduce(world(), data.data(), nullptr, count, SumOrder::library, "test");
    engine.wait(engine.all_reduce(world(), second.data(), nullptr, std::ssize(second),
                                  SumOrder::library, "test"));
    ASSERT_EQ(second.back(), static_cast<float>(2 * round * world().size()));
    engine.wait(large);
    copy_bytes(stream(), copy.data(), data.data(), first.size() * sizeof(float));
    ASSERT_EQ(copy.values().back(), static_cast<float>(round * world().size()));
  }
}

TEST_P(EngineFixture, WithoutGpusAllIsStaged) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const Engine::Connections connections{.groups = {world()}, .messages = world(), .routes = {}};
  EXPECT_EQ(engine.connect(world(), connections), Engine::Transport::staged);
  EXPECT_EQ(engine.connect(world(), connections, Engine::Transport::staged),
            Engine::Transport::staged);
  EXPECT_THROW(engine.connect(world(), connections, Engine::Transport::nccl), Failure);
  const DeviceArray<float> data = area(std::vector<float>(100, 1.0f));
  engine.wait(engine.all_reduce(world(), data.data(), nullptr, 100, SumOrder::library, "test"));
  EXPECT_EQ(data.values().back(), static_cast<float>(world().size()));
}

TEST_P(EngineFixture, RecordsSpansOnRequest) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const auto sum = [&](std::string_view label) {
    const DeviceArray<float> data = area(part_of(world().rank(), 1009, 7));
    const double before = monotonic_seconds();
    engine.wait(engine.all_reduce(world(), data.data(), nullptr, 1009, SumOrder::library, label));
    engine.quiesce();
    return std::pair(before, monotonic_seconds());
  };
  sum("before");
  engine.record_spans(true);
  const double waited_before = engine.waited_seconds();
  const auto [from, to] = sum("kept");
  const std::vector<Engine::Span> spans = engine.take_spans();
  std::size_t requests = 0;
  double waited = 0;
  for (const Engine::Span& span : spans) {
    if (span.is_wait)
      waited += span.end - span.begin;
    else
      ++requests;
    EXPECT_EQ(span.group, span.is_wait ? "" : world().name());
    EXPECT_EQ(span.purpose.label, "kept");
    EXPECT_LE(from, span.begin);
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, to);
  }
  EXPECT_EQ(requests, world().size() > 1 ? 1u : 0u);  // one rank sends nothing
  EXPECT_NEAR(waited, engine.waited_seconds() - waited_before, 1e-9);
  engine.record_spans(false);
  sum("behind");
  EXPECT_TRUE(engine.take_spans().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Drives, EngineFixture,
    testing::Combine(testing::Values(Engine::ProgressMode::polled, Engine::ProgressMode::thread),
                     testing::Values(DeviceKind::cpu, DeviceKind::emulated)),
    [](const auto& which) {
      const std::string progress_mode =
          std::get<0>(which.param) == Engine::ProgressMode::thread ? "thread" : "polled";
      return progress_mode + (in_host_memory(std::get<1>(which.param)) ? "_host" : "_device");
    });

TEST(Engine, HasAThreadWhereMpiAllowsIt) {
  EXPECT_EQ(Engine(Engine::ProgressMode::thread).progress_mode(),
            test_environment().thread_multiple() ? Engine::ProgressMode::thread
                                                 : Engine::ProgressMode::polled);
  EXPECT_EQ(Engine(Engine::ProgressMode::polled).progress_mode(), Engine::ProgressMode::polled);
}

}  // namespace
}  // namespace trireme::comm
