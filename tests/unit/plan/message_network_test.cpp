// SPDX-License-Identifier: Apache-2.0
//
// Tests MessageNetwork (plan/machine/message_network.hpp) against times computed by hand.
#include "plan/machine/message_network.hpp"

#include <gtest/gtest.h>

namespace trireme::plan {
namespace {

constexpr bool inside = false, outside = true;

void run(MessageNetwork& network) {
  while (network.advance()) {
  }
}

TEST(MessageNetwork, TwoMessagesOfOneStageShareItsLink) {
  MessageNetwork network(3);
  const auto first = network.send(1, 0, outside, 0, 3), second = network.send(1, 2, outside, 1, 3);
  EXPECT_FALSE(network.end(first).has_value());
  run(network);
  // 1 s alone, 4 s at half the rate; then the second has 1 s left.
  EXPECT_DOUBLE_EQ(network.end(first).value(), 5);
  EXPECT_DOUBLE_EQ(network.end(second).value(), 6);
  EXPECT_DOUBLE_EQ(network.begin(second), 1);
}

TEST(MessageNetwork, TwoMessagesToOneStageShareItsLink) {
  MessageNetwork network(3);
  const auto first = network.send(0, 1, outside, 0, 3), second = network.send(2, 1, outside, 0, 1);
  run(network);
  EXPECT_DOUBLE_EQ(network.end(second).value(), 2);
  EXPECT_DOUBLE_EQ(network.end(first).value(), 4);
}

TEST(MessageNetwork, DirectionsAndLinksDoNotShare) {
  MessageNetwork network(3);
  const auto out = network.send(1, 0, outside, 0, 3), in = network.send(2, 1, outside, 0, 3),
             near = network.send(1, 2, inside, 0, 3);
  run(network);
  for (const auto message : {out, in, near}) EXPECT_DOUBLE_EQ(network.end(message).value(), 3);
}

TEST(MessageNetwork, MessagesFromOneStageToAnotherRunInOrder) {
  MessageNetwork network(2);
  const auto first = network.send(0, 1, inside, 0, 2), second = network.send(0, 1, inside, 1, 2),
             third = network.send(0, 1, inside, 9, 0);
  run(network);
  EXPECT_DOUBLE_EQ(network.end(first).value(), 2);
  EXPECT_DOUBLE_EQ(network.begin(second), 2);
  EXPECT_DOUBLE_EQ(network.end(second).value(), 4);
  EXPECT_DOUBLE_EQ(network.end(third).value(), 9);
}

TEST(MessageNetwork, TimePassesByOneMessage) {
  MessageNetwork network(3);
  network.send(0, 1, inside, 0, 2);
  const auto ended = network.advance();
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->from, 0);
  EXPECT_EQ(ended->to, 1);
  const auto answer = network.send(1, 0, inside, 2, 1);
  EXPECT_TRUE(network.advance().has_value());
  EXPECT_DOUBLE_EQ(network.end(answer).value(), 3);
  EXPECT_FALSE(network.advance().has_value());
}

}  // namespace
}  // namespace trireme::plan
