#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/base/clock.hpp"
#include "trireme/train/run_clock.hpp"

namespace trireme::train {
namespace {

using Unit = Duration::Unit;

int times_due(const Interval& interval, int steps) {
  int count = 0;
  for (int step = 1; step <= steps; ++step) count += interval.due(step) ? 1 : 0;
  return count;
}

TEST(Interval, FallsDueAtEveryMultiple) {
  const StepScale scale{.samples_per_step = 100, .samples_per_epoch = 1000, .tokens_per_sample = 0};
  EXPECT_TRUE(Interval({1, Unit::epochs}, scale).due(10));
  EXPECT_FALSE(Interval({1, Unit::epochs}, scale).due(11));
  EXPECT_EQ(times_due(Interval({1, Unit::epochs}, scale), 100), 10);
  EXPECT_EQ(times_due(Interval({0.5, Unit::epochs}, scale), 100), 20);
  EXPECT_EQ(times_due(Interval({7, Unit::steps}, scale), 100), 14);
  EXPECT_EQ(times_due(Interval({300, Unit::samples}, scale), 99), 33);
}

TEST(Interval, FollowsEpochsThatAreNoWholeNumberOfSteps) {
  const StepScale scale{.samples_per_step = 64, .samples_per_epoch = 1000, .tokens_per_sample = 0};
  const Interval interval({1, Unit::epochs}, scale);
  EXPECT_TRUE(interval.due(16));  // 1024 samples: the first step past 1000
  EXPECT_TRUE(interval.due(32));  // 2048 past 2000
  EXPECT_EQ(times_due(interval, 1000), 64);
}

TEST(Interval, OfTimeIsNeverDueByStep) {
  const Interval interval({30, Unit::seconds}, {});
  EXPECT_TRUE(interval.is_time());
  EXPECT_EQ(times_due(interval, 100), 0);
  EXPECT_FALSE(interval.over(29));
  EXPECT_TRUE(interval.over(30));
}

TEST(RunClock, KeepsStepCheckpointAndMarginFree) {
  RunOptions options;
  options.walltime = Duration{100, Unit::seconds};
  options.walltime_margin = {20, Unit::seconds};
  const RunClock clock(options);
  EXPECT_FALSE(clock.must_stop(10, 60));
  EXPECT_TRUE(clock.must_stop(21, 60));
  EXPECT_TRUE(clock.must_stop(10, 75));
}

TEST(RunClock, TakesTheEndFromSlurm) {
  setenv("SLURM_JOB_ID", "17", 1);
  setenv("SLURM_JOB_END_TIME", std::to_string(static_cast<long>(wall_seconds()) + 1000).c_str(), 1);
  RunOptions options;
  const RunClock clock(options);
  unsetenv("SLURM_JOB_END_TIME");
  unsetenv("SLURM_JOB_ID");
  ASSERT_TRUE(clock.left().has_value());
  EXPECT_NEAR(*clock.left(), 1000, 2);
  EXPECT_EQ(clock.source(), "Slurm job 17");
}

TEST(RunClock, HasNoEndOutsideAJob) {
  RunOptions options;
  const RunClock clock(options);
  EXPECT_FALSE(clock.left().has_value());
  EXPECT_FALSE(clock.must_stop(1e9, 1e9));
}

}  // namespace
}  // namespace trireme::train
