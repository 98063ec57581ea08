// SPDX-License-Identifier: Apache-2.0
//
// Messages of the engine between 1 to 4 ranks, below and above the eager limit of MPI: they cross
// without a deadlock and are matched by tag in order. Pending receives delay nothing else, and a
// message of another length is a failure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine_fixture.hpp"
#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

// Every rank first sends to all others, then receives from all: small messages, and messages above
// the eager limit, which MPI sends only once they are received.
TEST_P(EngineFixture, MessagesCross) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank();
  for (const std::int64_t count : {1, 1000, 3000001}) {
    std::vector<DeviceArray<std::byte>> sent, received;
    for (int other = 0; other < size; ++other) {
      sent.push_back(area(bytes_of(count, rank * size + other)));
      received.push_back(area(bytes_of(count, 0)));
    }
    for (int other = 0; other < size; ++other) {
      if (other != rank)
        engine.send(world(), sent[static_cast<std::size_t>(other)].span(), other, 3, "test");
    }
    for (int other = 0; other < size; ++other) {
      if (other != rank)
        engine.wait(engine.receive(world(), received[static_cast<std::size_t>(other)].span(), other,
                                   3, "test"));
    }
    engine.quiesce();
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      EXPECT_EQ(received[static_cast<std::size_t>(other)].values(),
                bytes_of(count, other * size + rank))
          << count << " bytes from rank " << other;
    }
  }
}

TEST_P(EngineFixture, MessagesAreMatchedByTagThoseOfOneTagInOrder) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const std::vector<std::byte> first = bytes_of(500, 1), second = bytes_of(500, 2),
                               large = bytes_of(200000, 3);
  if (world().rank() == 0) {
    const DeviceArray<std::byte> a = area(first), b = area(second), c = area(large);
    engine.send(world(), a.span(), 1, 7, "test");
    engine.send(world(), b.span(), 1, 7, "test");
    engine.send(world(), c.span(), 1, (1 << 14) - 1, "test");
    engine.quiesce();
  }
  if (world().rank() == 1) {
    const DeviceArray<std::byte> a = area(bytes_of(500, 0)), b = area(bytes_of(500, 0)),
                                 c = area(bytes_of(200000, 0));
    // Sent last, received first.
    engine.wait(engine.receive(world(), c.span(), 0, (1 << 14) - 1, "test"));
    const Engine::Request request = engine.receive(world(), a.span(), 0, 7, "test");
    engine.wait(engine.receive(world(), b.span(), 0, 7, "test"));
    engine.wait(request);
    EXPECT_EQ(a.values(), first);
    EXPECT_EQ(b.values(), second);
    EXPECT_EQ(c.values(), large);
  }
}

// Receives of a pipeline may stay unmatched for long. They must delay neither later requests nor
// wait().
TEST_P(EngineFixture, PendingReceivesDelayNothingElse) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank();
  const int from = (rank + 1) % size, to = (rank + size - 1) % size;
  const int late = size > 1 ? 20 : 0;  // more than max_started_collectives
  const DeviceArray<std::byte> sent = area(bytes_of(100000, rank));
  std::vector<DeviceArray<std::byte>> received;
  std::vector<Engine::Request> receives, requested;
  for (int i = 0; i < late; ++i) {
    received.push_back(area(bytes_of(sent.size(), size)));
    receives.push_back(
        engine.receive(world(), received.back().span(), from, 11 + i, "trireme/test/late"));
  }
  const int requests = 600, longest = 700;  // more than the initial slots
  std::vector<float> values;
  for (int i = 0; i < requests; ++i)
    values.insert(values.end(), longest, static_cast<float>(rank + i));
  const DeviceArray<float> data = area(values), scratch = room(data.size());
  for (int i = 0; i < requests; ++i) {
    requested.push_back(engine.all_reduce(world(), data.data() + i * longest,
                                          scratch.data() + i * longest, 50 + i,
                                          i % 2 == 0 ? SumOrder::tree : SumOrder::library, "test"));
  }
  for (int i = requests - 1; i >= 0; --i) engine.wait(requested[static_cast<std::size_t>(i)]);
  values = data.values();
  for (int i = 0; i < requests; ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i * longest + 49 + i)],
              static_cast<float>(size * i + size * (size - 1) / 2))
        << "request " << i;
    ASSERT_EQ(values[static_cast<std::size_t>(i * longest + 50 + i)], static_cast<float>(rank + i))
        << "behind request " << i;
  }
  const std::vector<std::string> lines = engine.describe();
  ASSERT_EQ(std::ssize(lines), late);
  for (int i = 0; i < late; ++i) {
    EXPECT_EQ(lines[static_cast<std::size_t>(i)],
              "receive " + std::to_string(i + 1) + " trireme/test/late: 100000 bytes from rank " +
                  std::to_string(from) + " of group world, tag " + std::to_string(11 + i) +
                  (engine.progress_mode() == Engine::ProgressMode::thread ? "; blocked on peers"
                                                                          : "; not polled"));
  }
  world().barrier();  // no rank has sent anything before this point
  for (int i = 0; i < late; ++i) engine.send(world(), sent.span(), to, 11 + i, "test");
  for (const Engine::Request request : receives) engine.wait(request);
  for (const DeviceArray<std::byte>& message : received)
    EXPECT_EQ(message.values(), bytes_of(100000, from));
  engine.quiesce();
  EXPECT_TRUE(engine.describe().empty());
}

TEST_P(EngineFixture, AMessageOfAnotherLengthIsAFailure) {
  if (world().size() == 1) return;
  for (const std::size_t length : {4u, 16u}) {
    Engine engine(progress_mode());
    engine.attach_device(stream());
    const DeviceArray<std::byte> data = area(bytes_of(16, 0));
    if (world().rank() == 0)
      engine.wait(engine.send(world(), data.span().first(length), 1, 5, "test"));
    if (world().rank() == 1) {
      const auto received = [&] {
        engine.wait(engine.receive(world(), data.span().first(8), 0, 5, "test"));
      };
      EXPECT_THROW(received(), Failure) << length;
      EXPECT_THROW(engine.quiesce(), Failure) << "what failed once is not forgotten";
    }
  }
  EXPECT_EQ(world().all_reduce(1, Reduction::sum), world().size())
      << "the group is in step after all this";
}

}  // namespace
}  // namespace trireme::comm
