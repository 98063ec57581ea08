// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/noise_advice.hpp"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

TEST(NoiseAdvice, ReadsTheLastMeasurementAndTheRangeOfTheLaterHalf) {
  EXPECT_FALSE(read_noise({}).has_value());
  EXPECT_FALSE(read_noise(std::vector<double>{unknown, -3}).has_value());
  const auto reading = read_noise(std::vector<double>{9000, unknown, 20, 610, 420, -1, 510});
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->samples, 510);
  EXPECT_EQ(reading->low, 420);
  EXPECT_EQ(reading->high, 610);
}

class NoiseAdviceOfADeck : public testing::Test {
 protected:
  NoiseAdviceOfADeck() {
    deck.batch = {.global = 4096, .micro = 128};
    deck.run.stop = {10, Duration::Unit::epochs};
    layout.data = 2;
    layout.global = 4096;
    layout.samples_per_epoch = 40960;
    layout.total_steps = 100;
  }
  NoiseAdvice advice(double samples) {
    return noise_advice({.samples = samples, .low = 420, .high = 610}, deck, layout);
  }
  deck::Deck deck;
  ResolvedLayout layout;
};

TEST_F(NoiseAdviceOfADeck, ComparesALargeBatchWithAUsualOne) {
  const NoiseAdvice found = advice(510);
  EXPECT_EQ(found.text,
            "batch 4096 is 8.0 times the noise scale (510 samples, 420 to 610): expect 6.0 times "
            "the epochs of batch 256");
  EXPECT_NEAR(found.epochs, (1 + 4096 / 510.0) / (1 + 256 / 510.0), 1e-12);
  EXPECT_EQ(found.ramp,
            "batch.ramp = [[\"0 epochs\", 256], [\"2.5 epochs\", 1024], [\"5 epochs\", 4096]]");
}

TEST_F(NoiseAdviceOfADeck, ComparesASmallBatchWithTheNoiseScale) {
  deck.batch.global = layout.global = 256;
  const NoiseAdvice found = advice(1024);
  EXPECT_EQ(found.text,
            "batch 256 is 0.25 times the noise scale (1024 samples, 420 to 610): expect 0.62 "
            "times the epochs of batch 1024, and 2.5 times its steps");
  EXPECT_EQ(found.ramp, "");
}

TEST_F(NoiseAdviceOfADeck, RampsHaveWholeMicroBatchesOfAllReplicas) {
  layout.data = 16;
  EXPECT_EQ(advice(510).ramp, "batch.ramp = [[\"0 epochs\", 2048], [\"5 epochs\", 4096]]");
  layout.data = 32;
  EXPECT_EQ(advice(510).ramp, "") << "a replica has one micro-batch already";
}

TEST_F(NoiseAdviceOfADeck, RampsNeedAStopInEpochs) {
  deck.run.stop = {100, Duration::Unit::steps};
  EXPECT_TRUE(advice(510).ramp.ends_with(", run.stop = \"10 epochs\"")) << advice(510).ramp;
  layout.total_steps = 0;
  EXPECT_EQ(advice(510).ramp, "") << "run.stop is a time";
}

}  // namespace
}  // namespace trireme::train
