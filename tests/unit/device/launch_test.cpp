// SPDX-License-Identifier: Apache-2.0
//
// LaunchGraphs on the emulated device: order of launches, when a launch list becomes a graph, when
// a graph is dropped.

#include "trireme/device/launch.hpp"

#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/device/stream.hpp"

namespace trireme {
namespace {

using Log = std::vector<int>;

/// A stream whose launches append their number to a log when they run.
class LaunchGraphTest : public testing::Test {
 protected:
  void launch_number(int number) {
    launch(stream_.get(), [number, to = &log_](const Stream&) { to->push_back(number); });
  }
  /// A launch with padding between value and pointer that is never set.
  void launch_narrow(char number) {
    launch(stream_.get(), [number, to = &log_](const Stream&) { to->push_back(number); });
  }
  void launch_number(std::initializer_list<int> numbers) {
    for (const int number : numbers) launch_number(number);
  }
  /// Runs one section with these launches and returns the log.
  Log section(std::initializer_list<int> numbers, std::size_t number = 0) {
    LaunchSection launches(stream_, number);
    launch_number(numbers);
    EXPECT_TRUE(log_.empty());
    launches.end();
    return std::exchange(log_, {});
  }

  Device device_{DeviceKind::emulated, 0};
  LaunchGraphs graphs_{true};
  OwnedStream stream_{device_, OwnedStream::Priority::normal, &graphs_};
  Log log_;
};

TEST_F(LaunchGraphTest, OutsideOfSectionsAllIsMadeAtOnce) {
  launch_number(1);
  EXPECT_EQ(log_, Log{1});
  EXPECT_EQ(graphs_.launch_count(), 0);
}

TEST_F(LaunchGraphTest, ARepeatedSectionBecomesAGraph) {
  const Log five{1, 2, 3, 4, 5};
  EXPECT_EQ(section({1, 2, 3, 4, 5}), five);
  EXPECT_EQ(graphs_.graph_count(), 0);
  for (int time = 2; time < 5; ++time) EXPECT_EQ(section({1, 2, 3, 4, 5}), five);
  EXPECT_EQ(graphs_.graph_count(), 1);
  EXPECT_EQ(graphs_.launch_count(), 20);
  EXPECT_EQ(graphs_.replayed_launch_count(), 15);
  EXPECT_EQ(section({1, 2, 3, 4, 5}, 1), five);  // another section starts without a graph
  EXPECT_EQ(graphs_.replayed_launch_count(), 15);
}

TEST_F(LaunchGraphTest, AChangedSectionIsLaunchedAsItIsNow) {
  for (int time = 0; time < 3; ++time) section({1, 2, 3, 4, 5});
  ASSERT_EQ(graphs_.graph_count(), 1);
  EXPECT_EQ(section({1, 2, 7, 4, 5}), (Log{1, 2, 7, 4, 5}));
  EXPECT_EQ(graphs_.graph_count(), 0);
  EXPECT_EQ(section({1, 2, 7, 4}), (Log{1, 2, 7, 4}));        // fewer
  EXPECT_EQ(section({1, 2, 7, 4, 6}), (Log{1, 2, 7, 4, 6}));  // more
  EXPECT_EQ(section({}), Log{});
  for (int time = 0; time < 2; ++time) EXPECT_EQ(section({1, 2, 7, 4, 6}), (Log{1, 2, 7, 4, 6}));
  EXPECT_EQ(graphs_.graph_count(), 1);
}

TEST_F(LaunchGraphTest, APartThatKeepsChangingIsLeftAloneForLonger) {
  const auto visits_until_a_graph = [&](int number) {
    int visits = 0;
    for (; visits < 100 && graphs_.graph_count() == 0; ++visits)
      EXPECT_EQ(section({number, 2, 3, 4}), (Log{number, 2, 3, 4}));
    section({0, 2, 3, 4});
    EXPECT_EQ(graphs_.graph_count(), 0);
    return visits;
  };
  for (const int expected : {2, 3, 5, 9, 17, 33, 33})
    EXPECT_EQ(visits_until_a_graph(expected), expected);
}

TEST_F(LaunchGraphTest, FewLaunchesAreNotWorthOne) {
  for (int time = 0; time < 4; ++time) EXPECT_EQ(section({1, 2, 3}), (Log{1, 2, 3}));
  EXPECT_EQ(graphs_.graph_count(), 0);
}

TEST_F(LaunchGraphTest, ComesBeforeWorkThatIsNoLaunch) {
  const Allocation block(device_, sizeof(int), "a number");
  Event event(device_);
  int number = 0;
  for (int time = 0; time < 4; ++time) {
    LaunchSection launches(stream_, 0);
    launch_number({1, 2, 3, 4});
    EXPECT_EQ(log_.size(), 0u);
    event.record(stream_);
    EXPECT_EQ(log_.size(), 4u);
    launch_number({5, 6});
    event.delay(stream_);
    EXPECT_EQ(log_.size(), 6u);
    launch_number(7);
    copy_bytes(stream_, block.data(), &number, sizeof number);
    EXPECT_EQ(log_.size(), 7u);
    launch_number(8);
    synchronize(stream_);
    EXPECT_EQ(log_.size(), 8u);
    launch_number({9, 10, 11, 12});
    launches.end();
    EXPECT_EQ(std::exchange(log_, {}), (Log{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  }
  EXPECT_EQ(graphs_.graph_count(), 2);  // for the two launch lists with four launches
}

TEST_F(LaunchGraphTest, DirectLaunchesComeBehindThoseKeptBack) {
  LaunchSection launches(stream_, 0);
  launch_number(1);
  {
    const DirectLaunches direct(stream_);
    EXPECT_EQ(log_, Log{1});
    const DirectLaunches within(stream_);
    launch_number(2);
    EXPECT_EQ(log_, (Log{1, 2}));
  }
  launch_number(3);
  EXPECT_EQ(log_, (Log{1, 2}));
  launches.end();
  EXPECT_EQ(log_, (Log{1, 2, 3}));
}

TEST_F(LaunchGraphTest, PaddingBetweenTheValuesOfALaunchDoesNotCount) {
  for (int time = 0; time < 2; ++time) {
    LaunchSection launches(stream_, 0);
    for (char number = 0; number < 4; ++number) {
      volatile char unset[64];  // changes the stack each time
      for (volatile char& byte : unset) byte = static_cast<char>(0x55 + time);
      launch_narrow(number);
    }
    launches.end();
  }
  EXPECT_EQ(graphs_.graph_count(), 1);
}

TEST_F(LaunchGraphTest, LaunchesOfAFailedSectionAreForgotten) {
  EXPECT_THROW(
      {
        LaunchSection launches(stream_, 0);
        launch_number({1, 2});
        throw std::runtime_error("a failure");
      },
      std::runtime_error);
  EXPECT_TRUE(log_.empty());
  launch_number(3);
  EXPECT_EQ(log_, Log{3});
  log_.clear();
  EXPECT_EQ(section({4, 5}), (Log{4, 5}));
}

TEST_F(LaunchGraphTest, NothingIsLeftOfThoseForgotten) {
  for (int time = 0; time < 2; ++time) section({1, 2, 3, 4});
  graphs_.clear();
  EXPECT_EQ(graphs_.graph_count(), 0);
  EXPECT_EQ(section({1, 2, 3, 4}), (Log{1, 2, 3, 4}));
  EXPECT_EQ(graphs_.graph_count(), 0);
}

TEST(LaunchGraphs, SwitchedOffKeepNothingBack) {
  const Device device{DeviceKind::emulated, 0};
  LaunchGraphs graphs(false);
  const OwnedStream stream(device, OwnedStream::Priority::normal, &graphs);
  int made = 0;
  LaunchSection launches(stream, 0);
  launch(stream.get(), [to = &made](const Stream&) { ++*to; });
  EXPECT_EQ(made, 1);
  launches.end();
  EXPECT_EQ(graphs.launch_count(), 0);
}

}  // namespace
}  // namespace trireme
