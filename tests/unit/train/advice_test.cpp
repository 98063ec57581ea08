// Tests the remarks on settings that are valid but seldom intended.
#include <gtest/gtest.h>

#include "trireme/train/advice.hpp"

namespace trireme::train {
namespace {

deck::Deck large_batch(std::int64_t global, optim::RateScaling scaling) {
  deck::Deck deck;
  deck.batch = {.global = global, .micro = 16};
  deck.schedule.scaling = scaling;
  deck.schedule.base_batch = 256;
  deck.schedule.rate = 0.1;
  deck.optimizer.kind = optim::OptimizerKind::lars;
  return deck;
}

TEST(Advice, AScaledRateWithoutWarmUpIsWarnedOf) {
  using optim::RateScaling;
  EXPECT_TRUE(schedule_warnings(large_batch(2048, RateScaling::linear)).empty());
  const auto warnings = schedule_warnings(large_batch(4096, RateScaling::linear));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0],
            "schedule.scaling raises the rate 16 times, to 1.6, without a warm-up; add for "
            "example warmup = \"5 epochs\" to [schedule]");
  EXPECT_TRUE(schedule_warnings(large_batch(4096, RateScaling::none)).empty());
  EXPECT_TRUE(schedule_warnings(large_batch(4096, RateScaling::sqrt)).empty());
  deck::Deck deck = large_batch(4096, RateScaling::linear);
  deck.schedule.warmup = Duration{5, Duration::Unit::epochs};
  EXPECT_TRUE(schedule_warnings(deck).empty());
}

TEST(Advice, LinearScalingOfSgdIsWarnedOfBeyond8192) {
  for (const std::int64_t global : {8192, 16384}) {
    deck::Deck deck = large_batch(global, optim::RateScaling::linear);
    deck.schedule.warmup = Duration{5, Duration::Unit::epochs};
    EXPECT_TRUE(schedule_warnings(deck).empty()) << "lars";
    deck.optimizer.kind = optim::OptimizerKind::sgd;
    EXPECT_EQ(schedule_warnings(deck).size(), global > 8192 ? 1u : 0u) << global;
  }
}

TEST(Advice, BatchNormOfMicroBatchesIsRemarked) {
  deck::Deck deck = large_batch(512, optim::RateScaling::none);
  ASSERT_TRUE(batch_norm_remark(deck).has_value());
  EXPECT_NE(batch_norm_remark(deck)->find("batch.micro = 16 samples, not from the 512"),
            std::string::npos);
  deck.model.norm = model::ResnetNorm::group;
  EXPECT_FALSE(batch_norm_remark(deck).has_value());
  deck.model.norm = model::ResnetNorm::batch;
  deck.batch.micro = 512;
  EXPECT_FALSE(batch_norm_remark(deck).has_value());
  deck.batch.micro = 16;
  deck.model.kind = model::ModelKind::mlp;
  EXPECT_FALSE(batch_norm_remark(deck).has_value());
}

}  // namespace
}  // namespace trireme::train
