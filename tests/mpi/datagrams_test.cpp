// SPDX-License-Identifier: Apache-2.0
//
// Datagrams at 1, 2 and 4 ranks: delivery in both directions, ignored messages, and the end of
// waiting.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/mpi.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/comm/datagrams/datagrams.hpp"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

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

/// Another network namespace is another host: rank 0 has no address there.
TEST(Datagrams, WithoutAnAddressOfRankZeroEveryRankNamesBothHosts) {
  const Communicator& world = test_environment().world();
  if (world.size() == 1) GTEST_SKIP() << "nobody to reach";
  const int before = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const bool is_apart = world.rank() == 0 && ::unshare(CLONE_NEWNET) == 0;
  if (world.all_reduce(is_apart ? 1 : 0, Reduction::max) == 0)
    GTEST_SKIP() << "network namespaces are made as root";
  try {
    Datagrams datagrams(world);
    ADD_FAILURE() << "no error";
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr("host " + host_name() + " ("));
    EXPECT_THAT(message, HasSubstr("rank 0 on host " + host_name() + " (none)"));
    EXPECT_THAT(message, HasSubstr("health.watchdog = \"none\""));
  }
  if (is_apart) {
    EXPECT_EQ(::setns(before, CLONE_NEWNET), 0);
  }
  ::close(before);
  world.barrier();
}

/// Every other process can send to the port of rank 0.
TEST(Datagrams, OfStrangersAreIgnored) {
  const Communicator& world = test_environment().world();
  Datagrams datagrams(world);
  std::array<std::byte, 16> message{};
  if (world.rank() == 0) {
    const int stranger = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const std::vector<std::byte> junk(2048, std::byte{1});
    // The port of this rank's socket is not public: all sockets of this process are tried.
    for (int descriptor = 0; descriptor < 256; ++descriptor) {
      sockaddr_in place{};
      socklen_t length = sizeof place;
      if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&place), &length) != 0 ||
          place.sin_family != AF_INET)
        continue;
      place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      for (const std::size_t size : {0U, 8U, 24U, 40U, 41U, 1048U, 2048U})
        (void)!::sendto(stranger, junk.data(), size, 0, reinterpret_cast<sockaddr*>(&place),
                        sizeof place);
    }
    for (int i = 0; i < 8; ++i) EXPECT_FALSE(datagrams.receive(message, 0.01));
    ::close(stranger);
  }
  world.barrier();
  if (world.rank() != 0) datagrams.send(0, message);
  for (int i = 1; world.rank() == 0 && i < world.size(); ++i)
    EXPECT_TRUE(datagrams.receive(message, patience_seconds)) << "the job's own go through";
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
