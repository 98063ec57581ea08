#include <gtest/gtest.h>

#include <limits>

#include "trireme/train/watch.hpp"

namespace trireme::train {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

Sign sign(double still, double allowed, bool waiting = false, std::int64_t step = 7) {
  Sign sign{
      .step = step, .still_seconds = still, .allowed_seconds = allowed, .waiting = waiting ? 1 : 0};
  set_text(sign.phase, "step");
  set_text(sign.host, "node1");
  set_text(sign.operation, "all_reduce 5 bucket");
  return sign;
}

TEST(Deadlines, AreManyTimesTheLongestButNeverShort) {
  Deadlines deadlines(10);
  EXPECT_EQ(deadlines.of("start"), never);
  EXPECT_EQ(deadlines.of("step"), 50);  // nothing is known yet
  deadlines.took("step", 0.1);
  EXPECT_EQ(deadlines.of("step"), 10);
  deadlines.took("step", 3);
  deadlines.took("step", 2);
  EXPECT_EQ(deadlines.of("step"), 30);
  deadlines.took("checkpoint-write", 1);
  EXPECT_EQ(deadlines.of("checkpoint-write"), 50);
  deadlines.took("checkpoint-write", 20);
  EXPECT_EQ(deadlines.of("checkpoint-write"), 200);
}

TEST(Activity, TellsHowLongItStandsWhere) {
  Activity activity(10, 100);
  EXPECT_EQ(activity.sign(5000).allowed_seconds, never);
  activity.enter("step", 1, 101);
  activity.enter("step", 2, 105);
  EXPECT_EQ(activity.sign(107).still_seconds, 2);
  EXPECT_EQ(activity.sign(107).allowed_seconds, 40);  // of the 4 s of step 1
  EXPECT_EQ(activity.sign(107).step, 2);
  EXPECT_STREQ(activity.sign(107).phase.data(), "step");
  activity.forgive(2);
  EXPECT_EQ(activity.sign(107).still_seconds, 0);
}

TEST(Activity, KnowsTheLastStepMadeAlsoWhereACheckpointOfAnEarlierOneIsWritten) {
  Activity activity(10, 0);
  EXPECT_EQ(activity.finished(), 0);
  EXPECT_EQ(activity.checkpoint(), -1);
  activity.step_begins(12, 5);
  activity.enter("step", 12, 1);
  EXPECT_EQ(activity.finished(), 11);
  activity.enter("checkpoint-close", 10, 2);
  EXPECT_EQ(activity.finished(), 12);
  EXPECT_EQ(activity.checkpoint(), 5);
}

/// Looks every second, as the watchdog does often, until somebody is lost.
std::optional<Watch::Lost> look_until(Watch& watch, double from, double to) {
  for (double now = from; now <= to; ++now) {
    if (auto lost = watch.look(now)) return lost;
  }
  return std::nullopt;
}

TEST(Watch, BlamesTheSilent) {
  Watch watch(3, 10, 0);
  for (int now = 1; now <= 40; ++now) {
    watch.heard(0, sign(0, never), now);
    if (now <= 20) watch.heard(2, sign(0, never), now);
    const auto lost = watch.look(now);
    ASSERT_EQ(lost.has_value(), now > 30) << now;  // rank 1 was never heard: not watched
    if (!lost) continue;
    EXPECT_EQ(lost->rank, 2);
    EXPECT_NE(lost->what.find("rank 2 on node1 gives no sign of life for 11.0 s"),
              std::string::npos)
        << lost->what;
    return;
  }
}

TEST(Watch, BlamesTheSilentThoughOthersStandOverTheirDeadlineFirst) {
  Watch watch(2, 10, 0);
  watch.heard(1, sign(0, 10, true), 1);  // stopped while it waited for another
  for (int now = 2; now <= 12; ++now) {
    watch.heard(0, sign(now, 10, true), now);
    const auto lost = watch.look(now);
    ASSERT_EQ(lost.has_value(), now > 11) << now;
    if (lost) {
      EXPECT_NE(lost->what.find("rank 1 on node1 gives no sign of life"), std::string::npos)
          << lost->what;
    }
  }
}

TEST(Watch, BlamesNobodyWhoLeft) {
  Watch watch(2, 10, 0);
  watch.heard(1, sign(0, never), 1);
  watch.left(1);
  EXPECT_FALSE(look_until(watch, 1, 100));
}

TEST(Watch, BlamesWhoWaitsForNobodyThoughOthersAreOverTheirDeadlineFirst) {
  Watch watch(3, 100, 0);
  watch.heard(0, sign(9, 10, true), 1);
  watch.heard(1, sign(8, 1000, false), 1);
  watch.heard(2, sign(9, 10, true), 1);
  EXPECT_FALSE(watch.look(1.5));
  const auto lost = watch.look(3);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->rank, 1);
  EXPECT_NE(lost->what.find("stands still for 10.0 s (last known: step 7, phase step)"),
            std::string::npos)
      << lost->what;
}

TEST(Watch, BlamesTheFirstToStandWhereAllWait) {
  Watch watch(3, 100, 0);
  watch.heard(0, sign(9.5, 10, true), 1);
  watch.heard(1, sign(9.8, 11, true), 1);
  watch.heard(2, sign(0, 10, false), 1);  // at work, and getting on
  const auto lost = watch.look(1.6);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->rank, 1);
  EXPECT_NE(lost->what.find("in all_reduce 5 bucket"), std::string::npos) << lost->what;
  EXPECT_EQ(watch.last_known(2).size(), 3);
}

TEST(Watch, ForgivesTheTimeInWhichItWasStoppedItself) {
  Watch watch(2, 10, 0);
  watch.heard(0, sign(0, 20), 1);
  watch.heard(1, sign(0, 20), 1);
  EXPECT_FALSE(look_until(watch, 1, 5));
  EXPECT_FALSE(watch.look(1000));
  watch.heard(0, sign(995, 20, true), 1001);  // it has waited for this process
  EXPECT_FALSE(watch.look(1001));
  for (int now = 1002; now <= 1020; ++now) {
    watch.heard(0, sign(0, 20), now);
    const auto lost = watch.look(now);
    ASSERT_EQ(lost.has_value(), now > 1010) << now;
    if (lost) {
      EXPECT_EQ(lost->rank, 1);
      return;
    }
  }
}

}  // namespace
}  // namespace trireme::train
