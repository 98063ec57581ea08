// SPDX-License-Identifier: Apache-2.0
//
// Tests comm::SealedDatagrams: only whole, new datagrams of ranks that have the key are opened.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "comm/datagrams/sealed_datagrams.hpp"

namespace trireme::comm {
namespace {

using Message = std::array<std::byte, 16>;

SipKey key_of(int number) { return {static_cast<std::byte>(number)}; }

Message message_of(int number) { return {static_cast<std::byte>(number), std::byte{7}}; }

std::vector<std::byte> sealed(SealedDatagrams& sender, int to, const Message& message) {
  std::vector<std::byte> packet(SealedDatagrams::header_bytes + message.size());
  sender.seal(to, message, packet);
  return packet;
}

/// The ranks 0 to 2 of a job.
struct SealedDatagramsTest : ::testing::Test {
  SealedDatagrams zero{key_of(1), 0, 3}, one{key_of(1), 1, 3}, two{key_of(1), 2, 3};
  Message message{};

  std::optional<int> open(SealedDatagrams& receiver, std::span<const std::byte> packet) {
    return receiver.open(packet, message);
  }
};

TEST_F(SealedDatagramsTest, ReachTheirReceiver) {
  EXPECT_EQ(open(zero, sealed(one, 0, message_of(3))), 1);
  EXPECT_EQ(message, message_of(3));
  EXPECT_EQ(open(zero, sealed(two, 0, message_of(4))), 2);
  EXPECT_EQ(open(one, sealed(zero, 1, message_of(5))), 0);
  EXPECT_EQ(message, message_of(5));
}

TEST_F(SealedDatagramsTest, WithAnyChangedBitAreRefused) {
  const std::vector<std::byte> packet = sealed(one, 0, message_of(3));
  for (std::size_t bit = 0; bit < 8 * packet.size(); ++bit) {
    std::vector<std::byte> changed = packet;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(open(zero, changed)) << bit;
  }
  EXPECT_EQ(open(zero, packet), 1) << "refused datagrams change nothing";
}

TEST_F(SealedDatagramsTest, OfAnyOtherLengthAreRefused) {
  const std::vector<std::byte> packet = sealed(one, 0, message_of(3));
  for (std::size_t length = 0; length < packet.size(); ++length)
    EXPECT_FALSE(open(zero, std::span(packet).first(length))) << length;
  std::vector<std::byte> longer = packet;
  longer.push_back({});
  EXPECT_FALSE(open(zero, longer));
  // A datagram that is shorter by its sender's will, where 16 bytes are expected.
  std::vector<std::byte> short_packet(SealedDatagrams::header_bytes + 8);
  one.seal(0, std::span(message).first(8), short_packet);
  EXPECT_FALSE(open(zero, short_packet));
}

TEST_F(SealedDatagramsTest, AreOpenedOnce) {
  const std::vector<std::byte> first = sealed(one, 0, message_of(1));
  const std::vector<std::byte> second = sealed(one, 0, message_of(2));
  EXPECT_EQ(open(zero, first), 1);
  EXPECT_FALSE(open(zero, first));
  EXPECT_EQ(open(zero, second), 1);
  for (const auto& packet : {first, second}) EXPECT_FALSE(open(zero, packet));
  EXPECT_EQ(open(zero, sealed(two, 0, message_of(1))), 2) << "each sender has its own counter";
}

TEST_F(SealedDatagramsTest, ThatAnotherHasOvertakenAreRefused) {
  const std::vector<std::byte> late = sealed(one, 0, message_of(1));
  EXPECT_EQ(open(zero, sealed(one, 0, message_of(2))), 1);
  EXPECT_FALSE(open(zero, late));
}

TEST_F(SealedDatagramsTest, ToAnotherRankOrBackToTheSenderAreRefused) {
  const std::vector<std::byte> to_one = sealed(zero, 1, message_of(1));
  EXPECT_FALSE(open(two, to_one));
  EXPECT_FALSE(open(zero, to_one));
  SealedDatagrams self(key_of(1), 0, 3);
  EXPECT_FALSE(open(zero, sealed(self, 0, message_of(1))));
}

TEST_F(SealedDatagramsTest, OfSendersWithoutTheKeyAreRefused) {
  SealedDatagrams stranger(key_of(2), 1, 3);
  EXPECT_FALSE(open(zero, sealed(stranger, 0, message_of(1))));
  for (const int rank : {-1, 3, 1 << 30}) {
    SealedDatagrams outside(key_of(1), rank, 3);
    EXPECT_FALSE(open(zero, sealed(outside, 0, message_of(1)))) << rank;
  }
}

/// The code covers the counter, so a recorded message cannot get a new one; and the key is in no
/// part of a datagram.
TEST_F(SealedDatagramsTest, ShowNothingOfTheKey) {
  const SipKey key = secret_key();
  SealedDatagrams sender(key, 1, 3);
  for (int i = 0; i < 100; ++i) {
    const std::vector<std::byte> packet = sealed(sender, 0, message_of(i));
    for (std::size_t at = 0; at + 8 <= packet.size(); ++at) {
      EXPECT_NE(std::memcmp(packet.data() + at, key.data(), 8), 0);
      EXPECT_NE(std::memcmp(packet.data() + at, key.data() + 8, 8), 0);
    }
  }
}

}  // namespace
}  // namespace trireme::comm
