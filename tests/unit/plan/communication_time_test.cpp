// SPDX-License-Identifier: Apache-2.0
//
// Times of communication on hand-computed cases.
#include "trireme/plan/machine/communication_time.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using enum CollectiveAlgorithm;

/// Nodes of 4 GPUs with 2 interfaces: 1 us and 1e10 bytes/s inside, 10 us and 1e9 between.
Machine small_cluster() {
  Machine machine;
  machine.name = "small";
  machine.node.devices = 4;
  machine.node.nics = 2;
  machine.node_link.latency_seconds = 1e-6;
  machine.node_link.bytes_per_s = 1e10;
  machine.network.latency_seconds = 1e-5;
  machine.network.bytes_per_s = 1e9;
  return machine;
}

constexpr double mega = 1e6;

TEST(CommunicationTime, MessagesShareTheInterfacesOfANode) {
  const Machine machine = small_cluster();
  EXPECT_DOUBLE_EQ(message_seconds(machine, mega, false), 1e-6 + 1e-4);
  EXPECT_DOUBLE_EQ(message_seconds(machine, mega, true), 1e-5 + 1e-3);
  EXPECT_DOUBLE_EQ(message_seconds(machine, mega, true, 2), 1e-5 + 1e-3);
  EXPECT_DOUBLE_EQ(message_seconds(machine, mega, true, 4), 1e-5 + 2e-3);
}

TEST(CommunicationTime, MeasuredRatesOfMessagesAreInterpolated) {
  Machine machine = small_cluster();
  machine.node_link.message_bytes = {1e3, 1e5};
  machine.node_link.message_bytes_per_s = {1e8, 1e10};
  EXPECT_DOUBLE_EQ(message_seconds(machine, 1e3, false), 1e-5);
  EXPECT_DOUBLE_EQ(message_seconds(machine, 1, false), 1e-5);
  EXPECT_NEAR(message_seconds(machine, 1e4, false), 1e4 / 1e9, 1e-12);
  EXPECT_DOUBLE_EQ(message_seconds(machine, 1e8, false), 1e-2);
}

TEST(CommunicationTime, RingsMoveTheDataTwice) {
  Machine machine = small_cluster();
  const CommunicationGroup node{4, 4};
  // 3 latencies and 3/4 of the data, twice.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, node, rings), 2 * (3e-6 + 0.75e-4));
  EXPECT_DOUBLE_EQ(reduce_scatter_seconds(machine, mega, node, rings), 3e-6 + 0.75e-4);
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine, mega, node, rings), 3e-6 + 0.75e-4);
  EXPECT_EQ(all_reduce_seconds(machine, mega, {1, 1}, rings), 0);
  // 8 ranks on 2 nodes: 6 links inside, 1 between, 2 interfaces; the network is the slower link.
  const CommunicationGroup two{8, 4};
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, two, rings),
                   2 * (6e-6 + 1e-5 + 0.875e6 / 2e9));
  // Four groups of one rank a node share both interfaces.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, {2, 1, 4}, rings), 2 * (1e-5 + 0.5e6 / 5e8));
  machine.node_link.sum_bytes_per_s = 1e9;
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, node, rings), 2 * (3e-6 + 0.75e-4) + 0.75e-3);
}

TEST(CommunicationTime, TreesExchangeWholeVectorsOrHalves) {
  Machine machine = small_cluster();
  machine.node_link.sum_bytes_per_s = 1e9;
  const CommunicationGroup node{4, 4};
  // Below 16 KiB two exchanges of everything.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e4, node, tree), 2 * (1e-6 + 1e-6 + 1e-5));
  // Above 1/2 and 1/4, there and back; 3/4 are added.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, node, tree), 2 * (2e-6 + 0.75e-4) + 0.75e-3);
  EXPECT_DOUBLE_EQ(reduce_scatter_seconds(machine, mega, node, tree), 2e-6 + 0.75e-4 + 0.75e-3);
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine, mega, node, tree), 2e-6 + 0.75e-4);
  // Three ranks: a chain there and back.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, {3, 4}, tree), 2 * (2 * (1e-6 + 1e-4) + 1e-3));
  // 8 ranks on 2 nodes: the level of rank^4 crosses the network, 4 ranks on 2 interfaces.
  machine.node_link.sum_bytes_per_s = 0;
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, {8, 4}, tree),
                   2 * (2e-6 + 0.75e-4 + 1e-5 + 0.125e6 / 5e8));
}

TEST(CommunicationTime, AxesExchangeTheWholeDataOnEachLevel) {
  const Machine machine = small_cluster();
  const double inside = 1e-6 + 1e-8, outside = 1e-5 + 1e2 / 5e8;  // of 100 bytes
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e2, {4, 4}, axis), 2 * inside);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e2, {8, 4}, axis), 2 * inside + outside);
  // Six ranks: up and down three levels.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e2, {6, 4}, axis), 4 * inside + 2 * outside);
  EXPECT_EQ(all_reduce_seconds(machine, 1e2, {1, 1}, axis), 0);
  // Each doubling of the ranks adds the same time, where a ring doubles it.
  const double more = all_reduce_seconds(machine, 1e2, {1024, 4}, axis) -
                      all_reduce_seconds(machine, 1e2, {512, 4}, axis);
  EXPECT_NEAR(more, outside, 1e-12);
}

TEST(CommunicationTime, HierarchiesSendPartsBetweenNodes) {
  Machine machine = small_cluster();
  const CommunicationGroup two{8, 4};
  // In the node 3 links and 3/4, twice; between nodes a quarter by four rings on two interfaces.
  const double inside = 2 * (3e-6 + 0.75e-4), between = 2 * (1e-5 + 0.125e6 / 5e8);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, two, hierarchical), inside + between);
  EXPECT_THROW(all_reduce_seconds(machine, mega, two, in_network), InputError);
  machine.node_link.in_network_bytes_per_s = 2e10;
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, mega, two, in_network),
                   2e-6 + mega / 2e10 + between);
  EXPECT_EQ(fastest_all_reduce(machine, mega, two), in_network);
  EXPECT_EQ(fastest_all_reduce(small_cluster(), mega, {4, 4}), rings);
}

TEST(CommunicationTime, MeasuredCollectivesReplaceFormulas) {
  Machine machine = small_cluster();
  machine.collectives["all_reduce"] = {{"measured", "2026-11"}, {2, 4}, {1e4, 1e6}, {1, 4, 2, 8}};
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e4, {2, 4}, rings), 1);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e5, {2, 4}, rings), 2);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e6, {4, 4}, rings), 8);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 3e6, {4, 4}, rings), 24);
  // Three ranks: those of four, times the ratio of the formulas.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(machine, 1e6, {3, 4}, rings),
                   8 * (2e-6 + 2e-4 / 3) / (3e-6 + 0.75e-4));
  // Two nodes, and other collectives, have the formula.
  EXPECT_LT(all_reduce_seconds(machine, 1e6, {8, 4}, rings), 1);
  EXPECT_LT(all_reduce_seconds(machine, 1e6, {4, 4}, tree), 1);
}

TEST(CommunicationTime, AMissingLinkIsNamed) {
  Machine machine = small_cluster();
  machine.network.bytes_per_s = 0;
  EXPECT_THAT([&] { all_reduce_seconds(machine, mega, {8, 4}, rings); },
              ThrowsMessage<InputError>(HasSubstr("machine small: has no table [links.network]")));
}

}  // namespace
}  // namespace trireme::plan
