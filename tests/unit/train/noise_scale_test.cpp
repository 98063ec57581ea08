// SPDX-License-Identifier: Apache-2.0
//
// The estimates of the noise scale from squared norms, and their averages.

#include "trireme/train/step/noise_scale.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

/// The expected squares of gradients with |G|^2 = 3 and tr(Sigma) = 80: |G|^2 + tr(Sigma) / B.
GradientSquares expected_squares(double small, double large) {
  return {.small = 3 + 80 / small, .large = 3 + 80 / large};
}

TEST(NoiseScale, ExpectedSquaresGiveTheTrueValues) {
  NoiseScaleState state;
  for (int step = 0; step < 3; ++step) {
    const NoiseScale found = add_measurement(expected_squares(4, 32), 4, 32, state);
    EXPECT_NEAR(found.gradient_norm_squared, 3, 1e-12);
    EXPECT_NEAR(found.trace, 80, 1e-11);
    EXPECT_NEAR(found.samples, 80.0 / 3, 1e-11);
  }
  // Another layout continues the averages.
  EXPECT_NEAR(add_measurement(expected_squares(8, 64), 8, 64, state).samples, 80.0 / 3, 1e-11);
  EXPECT_EQ(state.measurements, 4);
}

TEST(NoiseScale, BothTermsAreAveragedBeforeTheDivision) {
  NoiseScaleState state;
  const NoiseScale first = add_measurement({.small = 5, .large = 2}, 1, 4, state),
                   second = add_measurement({.small = 9, .large = 3}, 1, 4, state);
  // |G|^2: 1 and 1; tr(Sigma): 4 and 8, with weights 0.09 and 0.1.
  EXPECT_NEAR(first.samples, 4, 1e-12);
  EXPECT_NEAR(second.gradient_norm_squared, 1, 1e-12);
  EXPECT_NEAR(second.trace, (0.09 * 4 + 0.1 * 8) / 0.19, 1e-12);
  EXPECT_NEAR(second.samples, second.trace, 1e-11);
}

TEST(NoiseScale, IsUnknownWhileTheNoiseHidesTheGradient) {
  NoiseScaleState state;
  const NoiseScale found = add_measurement({.small = 8, .large = 1}, 1, 4, state);
  EXPECT_LT(found.gradient_norm_squared, 0);
  EXPECT_TRUE(std::isnan(found.samples));
}

}  // namespace
}  // namespace trireme::train
