// SPDX-License-Identifier: Apache-2.0
//
// Tests the health rules of train::Health (train/supervision/health.hpp), the detector of slow
// ranks, and the search for the replicas that differ (train/supervision/replica_check.hpp). No rank
// runs: values are given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "train/supervision/replica_check.hpp"
#include "trireme/train/supervision/health.hpp"

namespace trireme::train {
namespace {

using testing::HasSubstr;

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Makes a step that is applied if its loss is finite and at most the limit.
std::vector<Health::Event> make_step(Health& health, double loss, double norm = 1) {
  StepResult result;
  result.loss = loss;
  result.grad_norm = norm;
  result.applied = std::isfinite(loss) && loss <= health.loss_limit();
  return health.observe(result);
}

TEST(Health, SpikesCountOnceAHundredStepsWereApplied) {
  Health health({});
  for (int step = 0; step < 99; ++step) make_step(health, 2);
  EXPECT_EQ(health.loss_limit(), infinity);
  make_step(health, not_a_number);  // Not applied, so not counted.
  EXPECT_EQ(health.loss_limit(), infinity);
  make_step(health, 2);
  EXPECT_NEAR(health.mean(), 2, 1e-12);  // Rounding of 100 additions.
  EXPECT_NEAR(health.loss_limit(), 20, 1e-11);
  EXPECT_TRUE(make_step(health, 5.9).empty());
  EXPECT_EQ(make_step(health, 19).at(0).event, "loss_spike");
  const double before = health.mean();
  EXPECT_EQ(make_step(health, 1000).at(0).event, "skipped_step");
  EXPECT_EQ(health.mean(), before);  // A dropped step does not enter the mean.
  EXPECT_EQ(health.state().spikes, 1);
  EXPECT_EQ(health.state().nonfinite, 1);
  EXPECT_EQ(health.state().warnings, 1);
}

TEST(Health, ASkippedStepNamesTheTensorThatIsNotFinite) {
  Health health({});
  StepResult result;
  result.loss = 2.5;
  result.applied = false;
  EXPECT_EQ(health.observe(result).at(0).detail,
            "loss or gradient is not finite (loss 2.5): the step is skipped");
  result.nonfinite_tensor = "fc.weight";
  EXPECT_EQ(health.observe(result).at(0).detail,
            "loss or gradient is not finite (loss 2.5, in the gradient of fc.weight): the step "
            "is skipped");
  result.overflow = true;
  result.loss_scale = 1024;
  EXPECT_EQ(health.observe(result).at(0).detail,
            "the gradient is not finite at loss scale 1024, in the gradient of fc.weight: the "
            "step is skipped, the loss scale is lowered");
}

TEST(Health, TheMeanIsExponential) {
  Health health({});
  make_step(health, 3);
  EXPECT_DOUBLE_EQ(health.mean(), 3);  // The mean of one step is its loss.
  make_step(health, 5);
  EXPECT_NEAR(health.mean(), (0.98 * 3 + 5) / 1.98, 1e-14);
  for (int step = 0; step < 2000; ++step) make_step(health, 7);
  EXPECT_NEAR(health.mean(), 7, 1e-12);  // 0.98^2000 is below rounding.
}

TEST(Health, TheLimitOfBeforeIsTheOneOfAStepAgo) {
  Health health({.spike_ratio = 3});
  double before = health.loss_limit();
  for (int step = 0; step < 120; ++step) {
    // A dropped step does not change the limit.
    make_step(health, step % 7 == 3 ? not_a_number : 2 + 0.01 * step);
    EXPECT_EQ(health.previous_loss_limit(), before) << step;
    before = health.loss_limit();
    const Health again({.spike_ratio = 3}, health.state());  // As restored from a checkpoint.
    EXPECT_EQ(again.previous_loss_limit(), health.previous_loss_limit());
  }
  EXPECT_NE(health.loss_limit(), health.previous_loss_limit());
  EXPECT_LT(health.loss_limit(), 10) << "armed";
  const HealthState then = health.state();
  make_step(health, 3);
  health.rolled_back(then);
  EXPECT_EQ(health.loss_limit(), before);
  EXPECT_EQ(health.state().previous_applied, then.previous_applied);
}

TEST(Health, ASpikeOfADelayedGradientIsOneWhenItIsDropped) {
  Health health({}, {.mean_sum = 2 * (1 - std::pow(0.98, 200)), .applied = 200});
  StepResult result;
  // Its gradient is decided in the next step; this step applies the previous gradient.
  result.loss = 100;
  EXPECT_EQ(health.observe(result).at(0).event, "loss_spike");
  EXPECT_NEAR(health.mean(), 2, 1e-12);
  result.loss = 2;
  result.applied = false;
  health.observe(result);
  EXPECT_EQ(health.state().spikes, 1);
  EXPECT_EQ(health.state().nonfinite, 0);
}

TEST(Health, BadStepsInARowArePastRepair) {
  Health health({.rollback_after = 3, .rollbacks = 1});
  make_step(health, 2);
  const HealthState then = health.state();
  for (int round = 0; round < 2; ++round) {
    for (int step = 0; step < 3; ++step) {
      EXPECT_FALSE(health.needs_rollback());
      make_step(health, not_a_number);
    }
    EXPECT_TRUE(health.needs_rollback());
    EXPECT_EQ(health.may_roll_back(), round == 0);
    health.rolled_back(then);
  }
  EXPECT_EQ(health.state().nonfinite, 6);
  EXPECT_EQ(health.state().rollbacks, 2);
  EXPECT_DOUBLE_EQ(health.mean(), 2);
  make_step(health, not_a_number);
  make_step(health, 2);
  EXPECT_EQ(health.state().consecutive_dropped, 0);
}

TEST(Health, AStepThatOnlyLowersTheLossScaleIsNotABadOne) {
  for (const bool skip : {true, false}) {
    Health health({.skip_nonfinite = skip, .rollback_after = 3});
    StepResult overflow;
    overflow.loss = 2;
    overflow.applied = false;
    overflow.overflow = true;
    overflow.loss_scale = 4096;
    make_step(health, 2);
    const HealthState before = health.state();
    for (int step = 0; step < 10; ++step) {
      const std::vector<Health::Event> events = health.observe(overflow);
      ASSERT_EQ(events.size(), 1U);
      EXPECT_EQ(events[0].event, "skipped_step");
      EXPECT_THAT(events[0].detail, HasSubstr("4096"));
      EXPECT_FALSE(events[0].is_logged);
    }
    EXPECT_EQ(health.loss_limit(), health.previous_loss_limit());
    HealthState after = health.state();
    after.previous_mean_sum = before.previous_mean_sum;
    after.previous_applied = before.previous_applied;
    EXPECT_EQ(after, before) << "but for what stood before the last step";
    EXPECT_FALSE(health.needs_rollback());
    overflow.overflow = false;  // The loss scale is at its minimum.
    for (int step = 0; step < 3; ++step) health.observe(overflow);
    EXPECT_TRUE(health.needs_rollback());
  }
}

TEST(Health, WithoutSkippingTheFirstBadStepIsTheLast) {
  Health health({.skip_nonfinite = false});
  make_step(health, 2);
  EXPECT_FALSE(health.needs_rollback());
  make_step(health, infinity);
  EXPECT_TRUE(health.needs_rollback());
  EXPECT_FALSE(health.may_roll_back());
}

TEST(Health, AllOfItCanBeOff) {
  Health health({.spike_ratio = 0, .spike_warn = 0, .grad_norm_warn = 0});
  for (int step = 0; step < 200; ++step) EXPECT_TRUE(make_step(health, 1, 1e9).empty());
  EXPECT_TRUE(make_step(health, 1e9, 1e9).empty());
  EXPECT_EQ(health.loss_limit(), infinity);
}

TEST(Health, LargeNormsAreEventsAndTheFirstIsSaid) {
  Health health({.grad_norm_warn = 10});
  EXPECT_TRUE(make_step(health, 1, 9).empty());
  EXPECT_TRUE(make_step(health, 1, 11).at(0).is_logged);
  EXPECT_FALSE(make_step(health, 1, 12).at(0).is_logged);
  EXPECT_TRUE(make_step(health, 1, 9).empty());
  EXPECT_TRUE(make_step(health, 1, 11).at(0).is_logged);
}

TEST(BusyWindow, LeavesOutTheLongestStep) {
  BusyWindow window;
  for (const double busy : {1.0, 9.0, 2.0}) window.add(busy, 10);
  EXPECT_EQ(window.steps(), 3);
  EXPECT_DOUBLE_EQ(window.busy_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(window.step_seconds(), 10);
}

TEST(FindSlowRanks, AreThoseFarAboveTheirStage) {
  // The second stage has more work.
  const std::vector<double> busy{1, 1, 1.2, 1, 3, 3, 3, 5};
  const std::vector<SlowRank> found =
      find_slow_ranks({.data = 4, .tensor = 1, .pipeline = 2}, busy, 6);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found.at(0).rank, 7);
  EXPECT_DOUBLE_EQ(found.at(0).busy_seconds, 5);
  EXPECT_DOUBLE_EQ(found.at(0).median_seconds, 3);
  EXPECT_TRUE(find_slow_ranks({.pipeline = 8}, busy, 6).empty());  // No rank has a like.
}

TEST(FindSlowRanks, MatterToTheStep) {
  const auto slow_ranks = [&](double fast, double busy, double step_seconds) {
    const std::vector<double> ranks{fast, busy};
    return find_slow_ranks({.data = 2}, ranks, step_seconds).size();
  };
  // Four times as long, but within one time slice of another process.
  EXPECT_EQ(slow_ranks(0.004, 0.016, 0.016), 0);
  EXPECT_EQ(slow_ranks(0.04, 0.16, 0.16), 1);
  EXPECT_EQ(slow_ranks(0.04, 0.16, 2), 0);  // The step is dominated by something else.
  EXPECT_EQ(slow_ranks(1, 1.4, 1.4), 0);
}

TEST(ReplicaCheck, TheMinorityDiffers) {
  const parallel::MeshShape shape{// Ranks 0, 2, 4 hold equal weights, and so do 1, 3, 5.
                                  .data = 3,
                                  .tensor = 2,
                                  .pipeline = 1};
  EXPECT_TRUE(differing_ranks(shape, {}).empty());
  EXPECT_TRUE(differing_ranks(shape, {1, 2, 1, 2, 1, 2}).empty());
  EXPECT_EQ(differing_ranks(shape, {1, 2, 1, 9, 1, 2}), std::vector<int>{3});
  EXPECT_EQ(differing_ranks(shape, {1, 2, 5, 2, 7, 2}),
            (std::vector<int>{0, 2, 4}));  // All three differ: no majority.
  EXPECT_EQ(differing_ranks({.data = 2}, {1, 2}), (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace trireme::train
