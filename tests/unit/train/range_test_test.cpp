// SPDX-License-Identifier: Apache-2.0
//
// The curve of a learning-rate range test: rates, divergence and the suggested rate.
#include "trireme/train/run/range_test.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

TEST(RateRange, RatesAreEvenlySpacedOnALogarithmicAxis) {
  const RateRange range{.low = 1e-4, .high = 1, .steps = 5};
  double expected = 1e-4;
  for (std::int64_t step = 1; step <= 5; ++step, expected *= 10)
    EXPECT_NEAR(range.rate(step), expected, expected * 1e-14);
}

/// The curve of a loss that falls by a logistic function around `steepest` and rises without bound
/// from `limit` on.
RangeCurve logistic_curve(const RateRange& range, double steepest, double limit) {
  RangeCurve curve;
  for (std::int64_t step = 1; step <= range.steps && !curve.has_diverged(); ++step) {
    const double rate = range.rate(step);
    const double fall = 1 / (1 + std::pow(rate / steepest, 3));
    const double noise = 0.02 * std::sin(static_cast<double>(step) * 2.4);
    const double rise = rate > limit ? std::pow(rate / limit, 4) : 0;
    curve.add({rate, 0.3 + 2 * fall + noise + rise});
  }
  return curve;
}

TEST(RangeCurve, SuggestsTheRateOfSteepestDescent) {
  const RateRange range{.low = 1e-5, .high = 10, .steps = 200};
  for (const double steepest : {1e-3, 1e-2, 1e-1}) {
    const RangeCurve curve = logistic_curve(range, steepest, 1);
    ASSERT_TRUE(curve.suggestion());
    // Smoothing in both directions does not move the curve: within five steps of 7 %.
    EXPECT_LT(std::abs(std::log(curve.suggestion()->steepest / steepest)), 0.35) << steepest;
    ASSERT_TRUE(curve.suggestion()->end);
    EXPECT_GT(*curve.suggestion()->end, steepest);
    EXPECT_LT(*curve.suggestion()->end, 1.2) << "the loss rises from 1 on";
    EXPECT_TRUE(curve.has_diverged());
    EXPECT_LT(curve.points().size(), 200u);
    EXPECT_LT(curve.points().back().rate, 10) << "the test ends soon after the loss grows";
  }
}

/// Noise of the first losses, to which a mean of one value gives its whole weight, is no descent.
TEST(RangeCurve, TheFirstLossesDoNotDecide) {
  const RateRange range;
  RangeCurve curve;
  for (std::int64_t step = 1; step <= range.steps; ++step) {
    const double rate = range.rate(step);
    const double first = step == 1 ? 2 : 0;
    curve.add({rate, 0.3 + 2 / (1 + std::pow(rate / 1e-2, 3)) + first});
  }
  EXPECT_LT(std::abs(std::log(curve.suggestion()->steepest / 1e-2)), 0.35);
}

/// The last losses of a test may be a hundred times as large as the others.
TEST(RangeCurve, ADivergedEndDoesNotHideTheFallBeforeIt) {
  const RateRange range{.low = 1e-4, .high = 10, .steps = 60};
  RangeCurve curve;
  for (std::int64_t step = 1; step <= range.steps && !curve.has_diverged(); ++step) {
    const double rate = range.rate(step), rise = rate > 3 ? 40 : 0;
    curve.add({rate, 0.3 + 2 / (1 + std::pow(rate / 0.1, 3)) + rise});
  }
  ASSERT_TRUE(curve.has_diverged());
  ASSERT_TRUE(curve.suggestion());
  EXPECT_LT(std::abs(std::log(curve.suggestion()->steepest / 0.1)), 0.35);
  ASSERT_TRUE(curve.suggestion()->end);
  EXPECT_GT(*curve.suggestion()->end, 1);
}

/// After a restart from trained weights the losses are small, and that of a lucky batch is a small
/// part of the others.
TEST(RangeCurve, AFirstLossBelowTheOthersDoesNotHideTheFall) {
  const RateRange range{.low = 1e-4, .high = 10, .steps = 60};
  RangeCurve curve;
  for (std::int64_t step = 1; step <= range.steps && !curve.has_diverged(); ++step) {
    const double rate = range.rate(step), rise = rate > 3 ? 40 : 0;
    const double loss = 0.3 + 2 / (1 + std::pow(rate / 0.1, 3)) + rise;
    curve.add({rate, step == 1 ? 0.01 : loss});
  }
  ASSERT_TRUE(curve.suggestion());
  EXPECT_LT(std::abs(std::log(curve.suggestion()->steepest / 0.1)), 0.35);
  EXPECT_NEAR(curve.limit(), 1.5 * 2.3, 1e-3);
}

/// A loss that falls by a part of itself in each step, in proportion to the rate, is steepest where
/// the sum of the rates so far is about 1. With fewer steps that is at a higher rate.
TEST(RangeCurve, FewerStepsSuggestAHigherRate) {
  const auto steepest = [](std::int64_t steps) {
    const RateRange range{.low = 1e-5, .high = 1, .steps = steps};
    RangeCurve curve;
    double loss = 2;
    for (std::int64_t step = 1; step <= steps; ++step) {
      curve.add({range.rate(step), 0.3 + loss});
      loss *= std::exp(-range.rate(step));
    }
    EXPECT_FALSE(curve.suggestion()->end) << "the loss falls to the end";
    return curve.suggestion()->steepest;
  };
  // The sum up to a rate is the rate times the steps of a factor e.
  EXPECT_NEAR(std::log(steepest(200) / steepest(800)), std::log(4), 0.4);
}

TEST(RangeCurve, EndsAtALossThatIsNotFinite) {
  RangeCurve curve;
  for (const double loss : {3.0, 2.0, 1.5}) curve.add({1, loss});
  EXPECT_FALSE(curve.has_diverged());
  curve.add({2, std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(curve.has_diverged());
  EXPECT_EQ(curve.points().size(), 4u);
  EXPECT_EQ(curve.smoothed().size(), 3u);
}

TEST(RangeCurve, SuggestsNothingIfTheLossNeverFalls) {
  RangeCurve curve;
  EXPECT_FALSE(curve.suggestion());
  for (int i = 0; i < 20; ++i) curve.add({std::pow(2, i), 1 + 0.1 * i});
  EXPECT_FALSE(curve.suggestion());
}

}  // namespace
}  // namespace trireme::train
