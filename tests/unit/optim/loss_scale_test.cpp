// SPDX-License-Identifier: Apache-2.0
//
// Skipped steps and loss scaling of the optimizer: a step that is not finite changes no weight and
// no slot, scaling changes no bits, and an overflow changes only the scale. The interval of growth
// continues after a restart.

#include <cstddef>
#include <limits>

#include <gtest/gtest.h>

#include "optimizer_fixture.hpp"

namespace trireme::optim {
namespace {

TEST(Optimizer, SkipsAStepThatIsNotFinite) {
  for (const UpdateRule* used : rules()) {
    OptimizerFixture fixture(options_of(*used)), twin(options_of(*used));
    fixture.step(1, 0.1);
    twin.step(1, 0.1);
    const auto skipped = [&](const StepOutcome& outcome) {
      EXPECT_FALSE(outcome.applied);
      EXPECT_EQ(fixture.all(), twin.all());
      EXPECT_EQ(fixture.optimizer.updates(), 1);
    };
    // Running statistics too: a value that is not finite would stay in them.
    for (int t = 0; t < tensors; ++t) {
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        fixture.fill_gradient(2);
        test::set_value(fixture.store.gradient({t}), 1, bad);
        skipped(fixture.optimizer.step(fixture.context, 0.1, true));
      }
    }
    fixture.fill_gradient(2);
    skipped(fixture.optimizer.step(fixture.context, 0.1, false));

    fixture.step(3, 0.1);
    twin.step(3, 0.1);
    EXPECT_EQ(fixture.all(), twin.all())
        << "bias correction and slots continue as without the skipped step";
  }
}

/// Scaling by a power of two rounds nothing, and statistics are not scaled.
TEST(LossScale, ScalingChangesNoBits) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.clip_norm = 0.5;
    options.ema = 0.75;
    OptimizerFixture plain(options),
        scaled(options, {.scaling = LossScaleOptions{.initial = 4096}});
    for (OptimizerFixture* fixture : {&plain, &scaled})
      fixture->optimizer.start_ema(fixture->context);
    for (int step = 1; step <= 3; ++step) {
      const StepOutcome expected = plain.step(step, 0.1), found = scaled.scaled_step(step, 0.1);
      EXPECT_EQ(found.grad_norm, expected.grad_norm);
      EXPECT_EQ(scaled.all(), plain.all()) << used->word;
    }
    EXPECT_EQ(scaled.optimizer.loss_scale(), (LossScale{4096, 3}));
  }
}

TEST(LossScale, OverflowChangesOnlyTheScale) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.ema = 0.75;
    OptimizerFixture fixture(options,
                             {.scaling = LossScaleOptions{.initial = 4096, .backoff = 0.25}}),
        twin(options, {.scaling = LossScaleOptions{.initial = 4096}});
    for (OptimizerFixture* each : {&fixture, &twin}) {
      each->optimizer.start_ema(each->context);
      each->scaled_step(1, 0.1);
    }
    fixture.fill_scaled_gradient(2);
    test::set_value(fixture.store.gradient({3}), 1, std::numeric_limits<float>::infinity());
    const StepOutcome outcome = fixture.optimizer.step(fixture.context, 0.1, true, 4096);
    EXPECT_FALSE(outcome.applied);
    EXPECT_TRUE(outcome.overflow);
    EXPECT_EQ(fixture.all(), twin.all());
    EXPECT_EQ(fixture.optimizer.updates(), 1);
    EXPECT_EQ(fixture.optimizer.loss_scale(), (LossScale{1024, 0}));
    fixture.scaled_step(3, 0.1);
    twin.scaled_step(3, 0.1);
    EXPECT_EQ(fixture.all(), twin.all()) << "at another scale, as without the skipped step";
  }
}

TEST(LossScale, ResumesTheGrowthInterval) {
  const LossScaleOptions scaling{.initial = 64, .growth = 4, .interval = 3};
  OptimizerFixture uninterrupted(options_of("sgd"), {.scaling = scaling}),
      resumed(options_of("sgd"), {.scaling = scaling});
  for (int step = 1; step <= 5; ++step) uninterrupted.scaled_step(step, 0.1);
  EXPECT_EQ(uninterrupted.optimizer.loss_scale(), (LossScale{256, 2}));
  resumed.scaled_step(1, 0.1);
  resumed.optimizer.set_loss_scale({256, 2});
  resumed.scaled_step(6, 0.1);
  EXPECT_EQ(resumed.optimizer.loss_scale(), (LossScale{1024, 0}));
  EXPECT_EQ(resumed.optimizer.updates(), 2) << "the device counts its own updates";
}

TEST(LossScale, IgnoredWithoutScaling) {
  OptimizerFixture fixture(options_of("sgd"));
  fixture.optimizer.set_loss_scale({256, 2});
  EXPECT_FALSE(fixture.optimizer.scales_loss());
  EXPECT_EQ(fixture.optimizer.loss_scale(), LossScale{});
}

}  // namespace
}  // namespace trireme::optim
