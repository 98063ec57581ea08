// SPDX-License-Identifier: Apache-2.0
//
// Tests train::Deadlines, MainThreadActivity and HeartbeatMonitor
// (train/supervision/heartbeat_monitor.hpp): which rank is reported as lost, and when. Times are
// given by the tests; no thread runs.
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/supervision/heartbeat_monitor.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::train {
namespace {

using testing::HasSubstr;

constexpr double never = std::numeric_limits<double>::infinity();

/// The deck is not read before MPI starts, so comm has a limit of its own.
TEST(InitTimer, WaitsFiveDefaultsOfTheWatchdog) {
  EXPECT_EQ(comm::max_init_seconds, std::max(60.0, 5 * deck::HealthOptions().watchdog->value));
}

RankHeartbeat make_heartbeat(double still, double allowed, bool waiting = false,
                             std::int64_t step = 7) {
  RankHeartbeat make_heartbeat{
      .step = step,
      .stalled_seconds = still,
      .deadline_seconds = allowed,
      .waiting_seconds = waiting ? still : 0,
      .state = waiting ? MainThreadState::blocked_on_peers : MainThreadState::computing};
  set_text(make_heartbeat.phase, "step");
  set_text(make_heartbeat.host, "node1");
  set_text(make_heartbeat.operation, "all_reduce 5 bucket");
  return make_heartbeat;
}

TEST(Deadlines, AreManyTimesTheLongestButNeverShort) {
  Deadlines deadlines(10);
  EXPECT_EQ(deadlines.seconds_for("start"), never);
  EXPECT_EQ(deadlines.seconds_for("step"), 50);  // No duration is known yet.
  deadlines.record("step", 0.1);
  EXPECT_EQ(deadlines.seconds_for("step"), 10);
  deadlines.record("step", 3);
  deadlines.record("step", 2);
  EXPECT_EQ(deadlines.seconds_for("step"), 30);
  deadlines.scale("step", 16);  // a batch that is 16 times as large
  EXPECT_EQ(deadlines.seconds_for("step"), 480);
  deadlines.scale("evaluation", 16);
  EXPECT_EQ(deadlines.seconds_for("evaluation"), 50) << "still unknown";
  deadlines.record("checkpoint-write", 1);
  EXPECT_EQ(deadlines.seconds_for("checkpoint-write"), 50);
  deadlines.record("checkpoint-write", 20);
  EXPECT_EQ(deadlines.seconds_for("checkpoint-write"), 200);
}

/// A row of batch.ramp begins with the work of a start, which has no deadline itself.
TEST(MainThreadActivity, ARowMayTakeAsLongAsTheStart) {
  for (const auto& [start_seconds, deadline] : {std::pair(3.0, 50.0), {40.0, 400.0}}) {
    MainThreadActivity activity(10, 100);
    activity.enter_phase("step", 1, 100 + start_seconds);
    activity.enter_phase("row", 1, 150);
    EXPECT_EQ(activity.heartbeat(160).deadline_seconds, deadline);
    EXPECT_EQ(activity.heartbeat(160).stalled_seconds, 10);
  }
}

TEST(MainThreadActivity, TellsHowLongItStandsWhere) {
  MainThreadActivity activity(10, 100);
  EXPECT_EQ(activity.heartbeat(5000).deadline_seconds, never);
  activity.enter_phase("step", 1, 101);
  activity.enter_phase("step", 2, 105);
  EXPECT_EQ(activity.heartbeat(107).stalled_seconds, 2);
  EXPECT_EQ(activity.heartbeat(107).deadline_seconds, 40);  // Ten times the 4 s of step 1.
  EXPECT_EQ(activity.heartbeat(107).step, 2);
  EXPECT_STREQ(activity.heartbeat(107).phase.data(), "step");
  // A part is named and has more time; the phase, its start and the step stay.
  const RankHeartbeat in_part = activity.heartbeat(107, "algorithm-trials");
  EXPECT_STREQ(in_part.phase.data(), "step: algorithm-trials");
  EXPECT_EQ(in_part.deadline_seconds, 160);
  EXPECT_EQ(in_part.stalled_seconds, 2);
  EXPECT_EQ(in_part.step, 2);
  activity.exclude_pause(2);
  EXPECT_EQ(activity.heartbeat(107).stalled_seconds, 0);
}

TEST(MainThreadActivity, KnowsTheLastStepWhileAnEarlierOneIsWritten) {
  MainThreadActivity activity(10, 0);
  EXPECT_EQ(activity.last_finished_step(), 0);
  activity.begin_step(12);
  activity.enter_phase("step", 12, 1);
  EXPECT_EQ(activity.last_finished_step(), 11);
  activity.enter_phase("checkpoint-close", 10, 2);
  EXPECT_EQ(activity.last_finished_step(), 12);
}

/// Checks once per second until a rank is lost; the watchdog checks more often.
std::optional<HeartbeatMonitor::LostRank> look_until(HeartbeatMonitor& watch, double from,
                                                     double to) {
  for (double now = from; now <= to; ++now) {
    if (auto lost = watch.find_lost_rank(now)) return lost;
  }
  return std::nullopt;
}

TEST(HeartbeatMonitor, BlamesTheSilent) {
  HeartbeatMonitor watch(3, 10, 0);
  for (int now = 1; now <= 40; ++now) {
    watch.record(0, make_heartbeat(0, never), now);
    if (now <= 20) watch.record(2, make_heartbeat(0, never), now);
    const auto lost = watch.find_lost_rank(now);
    ASSERT_EQ(lost.has_value(), now > 30) << now;  // Rank 1 never sent a heartbeat: not monitored.
    if (!lost) continue;
    EXPECT_EQ(lost->rank, 2);
    EXPECT_THAT(lost->description, HasSubstr("rank 2 on node1 sent no heartbeat for 11.0 s"));
    return;
  }
}

TEST(HeartbeatMonitor, BlamesTheSilentThoughOthersStandOverTheirDeadlineFirst) {
  HeartbeatMonitor watch(2, 10, 0);
  watch.record(1, make_heartbeat(0, 10, true), 1);  // Stopped while it waited for another rank.
  for (int now = 2; now <= 12; ++now) {
    watch.record(0, make_heartbeat(now, 10, true), now);
    const auto lost = watch.find_lost_rank(now);
    ASSERT_EQ(lost.has_value(), now > 11) << now;
    if (lost) {
      EXPECT_THAT(lost->description, HasSubstr("rank 1 on node1 sent no heartbeat"));
    }
  }
}

TEST(HeartbeatMonitor, BlamesNobodyWhoLeft) {
  HeartbeatMonitor watch(2, 10, 0);
  watch.record(1, make_heartbeat(0, never), 1);
  watch.stop_monitoring(1);
  EXPECT_FALSE(look_until(watch, 1, 100));
}

TEST(HeartbeatMonitor, BlamesWhoWaitsForNobodyThoughOthersAreOverTheirDeadlineFirst) {
  HeartbeatMonitor watch(3, 100, 0);
  watch.record(0, make_heartbeat(9, 10, true), 1);
  watch.record(1, make_heartbeat(8, 1000, false), 1);
  watch.record(2, make_heartbeat(9, 10, true), 1);
  EXPECT_FALSE(watch.find_lost_rank(1.5));
  const auto lost = watch.find_lost_rank(3);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->rank, 1);
  EXPECT_THAT(lost->description, HasSubstr("stalled for 10.0 s (last known: step 7, phase step)"));
}

TEST(HeartbeatMonitor, BlamesTheFirstToStandWhereAllWait) {
  HeartbeatMonitor watch(3, 100, 0);
  watch.record(0, make_heartbeat(9.5, 10, true), 1);
  watch.record(1, make_heartbeat(9.8, 11, true), 1);
  watch.record(2, make_heartbeat(0, 10, false), 1);  // Working normally.
  const auto lost = watch.find_lost_rank(1.6);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->rank, 1);
  EXPECT_THAT(lost->description, HasSubstr("in all_reduce 5 bucket"));
  EXPECT_EQ(watch.last_known_states(2).size(), 3);
}

TEST(HeartbeatMonitor, NamesTheActivityOfTheMainThread) {
  RankHeartbeat heartbeat = make_heartbeat(4.5, 10, true);
  EXPECT_EQ(describe_state(heartbeat), "blocked on peers for 4.5 s: all_reduce 5 bucket");
  heartbeat.state = MainThreadState::waiting_for_queued;
  EXPECT_EQ(describe_state(heartbeat),
            "waiting for a queued request for 4.5 s: all_reduce 5 bucket");
  heartbeat.state = MainThreadState::computing;
  EXPECT_EQ(describe_state(heartbeat), "computing, oldest request: all_reduce 5 bucket");
  set_text(heartbeat.operation, "");
  EXPECT_EQ(describe_state(heartbeat), "computing");
}

TEST(HeartbeatMonitor, InspectsTheLostRankAndThoseThatWaitLongest) {
  HeartbeatMonitor watch(5, 100, 0);
  watch.record(0, make_heartbeat(3, 100, true), 10);
  watch.record(1, make_heartbeat(0, 100, false), 10);
  watch.record(2, make_heartbeat(9, 100, false), 10);
  watch.record(3, make_heartbeat(4, 100, true), 9);  // It has waited for 5 s by the time 10.
  watch.record(4, make_heartbeat(6, 100, true), 10);
  EXPECT_EQ(watch.ranks_to_inspect({2, "stalled", false}, 8), (std::vector{2, 4, 3, 0}));
  EXPECT_EQ(watch.ranks_to_inspect({2, "stalled", false}, 2), (std::vector{2, 4}));
  EXPECT_EQ(watch.ranks_to_inspect({2, "silent", true}, 8), (std::vector{4, 3, 0}));
  EXPECT_EQ(watch.host_of(2), "node1");
}

TEST(HeartbeatMonitor, SaysWhetherTheLostRankIsSilent) {
  HeartbeatMonitor silent(2, 10, 0), stalled(2, 10, 0);
  silent.record(1, make_heartbeat(0, never), 1);
  const auto first = look_until(silent, 1, 20);
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->is_silent);
  stalled.record(1, make_heartbeat(5, 4), 1);
  const auto second = stalled.find_lost_rank(2);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->is_silent);
}

TEST(HeartbeatMonitor, ForgivesTheTimeInWhichItWasStoppedItself) {
  HeartbeatMonitor watch(2, 10, 0);
  watch.record(0, make_heartbeat(0, 20), 1);
  watch.record(1, make_heartbeat(0, 20), 1);
  EXPECT_FALSE(look_until(watch, 1, 5));
  EXPECT_FALSE(watch.find_lost_rank(1000));
  watch.record(0, make_heartbeat(995, 20, true), 1001);  // It waited for this process.
  EXPECT_FALSE(watch.find_lost_rank(1001));
  for (int now = 1002; now <= 1020; ++now) {
    watch.record(0, make_heartbeat(0, 20), now);
    const auto lost = watch.find_lost_rank(now);
    ASSERT_EQ(lost.has_value(), now > 1010) << now;
    if (lost) {
      EXPECT_EQ(lost->rank, 1);
      return;
    }
  }
}

}  // namespace
}  // namespace trireme::train
