// Datagrams at 1, 2 and 4 ranks: delivery in both directions, ignored messages, and the end of
// waiting.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <thread>

#include <sys/eventfd.h>
#include <unistd.h>

#include "../support/mpi.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/datagrams.hpp"

namespace trireme::comm {
namespace {

// Timeout that only a defect can reach; a datagram on one host takes microseconds.
constexpr double patience_seconds = 300;

TEST(Datagrams, GoToRankZeroAndBack) {
  const Communicator& world = test_environment().world();
  Datagrams datagrams(world);
  std::array<std::int64_t, 3> words{7, 8, world.rank()};
  const auto bytes = std::as_writable_bytes(std::span(words));
  if (world.rank() != 0) {
    datagrams.send(0, bytes);
    words = {};
    EXPECT_EQ(datagrams.receive(bytes, patience_seconds), 0);
    EXPECT_EQ(words, (std::array<std::int64_t, 3>{9, 10, world.rank()}));
  }
  // A rank without an answer sends to every address of rank 0, so copies may arrive.
  std::set<int> heard;
  while (world.rank() == 0 && static_cast<int>(heard.size()) + 1 < world.size()) {
    const auto from = datagrams.receive(bytes, patience_seconds);
    ASSERT_TRUE(from);
    heard.insert(*from);
    EXPECT_EQ(words, (std::array<std::int64_t, 3>{7, 8, *from}));
    words = {9, 10, *from};
    datagrams.send(*from, bytes);
  }
  world.barrier();
}

TEST(Datagrams, OfAnotherKeyOrLengthAreIgnored) {
  const Communicator& world = test_environment().world();
  Datagrams first(world), second(world);
  std::array<std::byte, 16> message{};
  if (world.rank() != 0) first.send(0, std::span(message).first(8));
  // Over shared memory or TCP: the datagram has arrived by now, or is lost.
  world.barrier();
  if (world.rank() == 0) {
    EXPECT_FALSE(second.receive(message, 0.05));
    EXPECT_FALSE(first.receive(message, 0.05));  // 8 bytes arrive where 16 are expected
  }
  world.barrier();
}

TEST(Datagrams, AreNotSentInAGroupOfOne) {
  Datagrams datagrams{Communicator()};
  std::array<std::byte, 16> message{};
  EXPECT_FALSE(datagrams.receive(message, 0.01));
}

TEST(Datagrams, AReadableDescriptorEndsAWait) {
  Datagrams datagrams(test_environment().world());
  const int descriptor = ::eventfd(0, EFD_CLOEXEC);
  std::array<std::byte, 16> message{};
  const double begin = monotonic_seconds();
  std::thread other([&] { EXPECT_EQ(::eventfd_write(descriptor, 1), 0); });
  EXPECT_FALSE(datagrams.receive(message, 2 * patience_seconds, descriptor));
  EXPECT_LT(monotonic_seconds() - begin, patience_seconds);
  other.join();
  ::close(descriptor);
}

TEST(Datagrams, StopReceivingEndsEveryWait) {
  Datagrams datagrams(test_environment().world());
  const double begin = monotonic_seconds();
  std::thread other([&] { datagrams.stop_receiving(); });
  std::array<std::byte, 16> message{};
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(datagrams.receive(message, 2 * patience_seconds));
  EXPECT_LT(monotonic_seconds() - begin, patience_seconds);
  other.join();
}

}  // namespace
}  // namespace trireme::comm
