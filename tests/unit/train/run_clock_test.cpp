// SPDX-License-Identifier: Apache-2.0
//
// Repetition intervals, and the time that is left until the end of a job.

#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/base/clock.hpp"
#include "trireme/train/run/run_clock.hpp"

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
  EXPECT_TRUE(interval.due(16));  // 1024 samples: the first step past 1000.
  EXPECT_TRUE(interval.due(32));  // 2048 samples, past 2000.
  EXPECT_EQ(times_due(interval, 1000), 64);
}

TEST(Interval, TakesFractionsOfStepsAndMultiplesThatComeOutEven) {
  // 10 steps are three of these intervals.
  const Interval interval({1000.0 / 3, Unit::samples}, {.samples_per_step = 100});
  EXPECT_EQ(interval.passed(3), 0);
  EXPECT_EQ(interval.passed(4), 1);
  EXPECT_EQ(interval.passed(7), 2);
  EXPECT_EQ(interval.passed(10), 3);
}

TEST(Interval, CountsSamplesWhereARampChangesTheSteps) {
  // Steps 1 to 10 take 100 samples, later ones 400.
  const StepScale scale{
      .samples_per_step = 400, .samples_per_epoch = 1000, .rows = {{1, 0, 100}, {11, 1000, 400}}};
  const Interval epochs({1, Unit::epochs}, scale);
  EXPECT_TRUE(epochs.due(10));
  EXPECT_FALSE(epochs.due(12));  // 1800 samples
  EXPECT_TRUE(epochs.due(13));   // 2200 samples
  EXPECT_TRUE(epochs.due(15));   // 3000 samples
  EXPECT_EQ(times_due(epochs, 15), 3);
  EXPECT_EQ(times_due(Interval({5, Unit::steps}, scale), 15), 3) << "steps stay steps";
}

TEST(Interval, OfTimeIsNeverDueByStep) {
  const Interval interval({30, Unit::seconds}, {});
  EXPECT_TRUE(interval.is_time());
  EXPECT_EQ(times_due(interval, 100), 0);
  EXPECT_FALSE(interval.has_elapsed(29));
  EXPECT_TRUE(interval.has_elapsed(30));
}

/// In days, because no test runs for hours.
TEST(RunClock, KeepsStepCheckpointAndMarginFree) {
  constexpr double day = 86400;
  deck::RunOptions options;
  options.walltime = Duration{100 * day, Unit::seconds};
  options.walltime_margin = {20 * day, Unit::seconds};
  const RunClock clock(options);
  EXPECT_FALSE(clock.must_stop(10 * day, 60 * day));
  EXPECT_TRUE(clock.must_stop(21 * day, 60 * day));
  EXPECT_TRUE(clock.must_stop(10 * day, 75 * day));
}

TEST(RunClock, TakesTheEndFromSlurm) {
  setenv("SLURM_JOB_ID", "17", 1);
  const double begin = wall_seconds();
  setenv("SLURM_JOB_END_TIME", std::to_string(static_cast<long>(begin) + 1000).c_str(), 1);
  deck::RunOptions options;
  const RunClock clock(options);
  unsetenv("SLURM_JOB_END_TIME");
  unsetenv("SLURM_JOB_ID");
  const std::optional<double> left = clock.seconds_left();
  ASSERT_TRUE(left.has_value());
  EXPECT_LE(*left, 1000);
  EXPECT_GE(*left, 1000 - 1 - 2 * (wall_seconds() - begin))
      << "the end is in whole seconds; what passes while the batch system is asked counts twice";
  EXPECT_EQ(clock.source(), "Slurm job 17");
}

TEST(RunClock, HasNoEndOutsideAJob) {
  deck::RunOptions options;
  const RunClock clock(options);
  EXPECT_FALSE(clock.seconds_left().has_value());
  EXPECT_FALSE(clock.must_stop(1e9, 1e9));
}

}  // namespace
}  // namespace trireme::train
