// SPDX-License-Identifier: Apache-2.0
//
// Tests the remarks on settings that are valid but seldom intended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/models.hpp"
#include "trireme/train/advice.hpp"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

deck::Deck large_batch(std::int64_t global, optim::RateScaling scaling) {
  deck::Deck deck;
  deck.batch = {.global = global, .micro = 16};
  deck.schedule.scaling = scaling;
  deck.schedule.base_batch = 256;
  deck.schedule.rate = 0.1;
  deck.optimizer.rule = &optim::rule("lars");
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
    deck.optimizer.rule = &optim::rule("sgd");
    EXPECT_EQ(schedule_warnings(deck).size(), global > 8192 ? 1u : 0u) << global;
  }
}

TEST(Advice, UnusualWarmUpsAreRemarked) {
  deck::Deck deck = large_batch(512, optim::RateScaling::none);
  ResolvedLayout layout;
  layout.schedule_steps = 1000;
  EXPECT_FALSE(warmup_remark(deck, layout).has_value()) << "no warm-up";
  for (const auto& [steps, unusual] : std::initializer_list<std::pair<double, bool>>{
           {9, true}, {10, false}, {100, false}, {101, true}}) {
    deck.schedule.warmup = Duration{steps, Duration::Unit::steps};
    EXPECT_EQ(warmup_remark(deck, layout).has_value(), unusual) << steps;
  }
  EXPECT_EQ(*warmup_remark(deck, layout),
            "schedule.warmup takes 10.1 % of the schedule, 101 of 1000 steps; 1 to 10 % are usual");
  layout.schedule_steps = 0;
  EXPECT_FALSE(warmup_remark(deck, layout).has_value()) << "no known length";
}

TEST(Advice, BatchNormOfMicroBatchesIsRemarked) {
  deck::Deck deck = large_batch(512, optim::RateScaling::none);
  ASSERT_TRUE(batch_norm_remark(deck).has_value());
  EXPECT_THAT(*batch_norm_remark(deck), HasSubstr("batch.micro = 16 samples, not from the 512"));
  deck.model.as<model::ResnetOptions>().norm = model::ImageNormKind::group;
  EXPECT_FALSE(batch_norm_remark(deck).has_value());
  deck.model.as<model::ResnetOptions>().norm = model::ImageNormKind::batch;
  deck.batch.micro = 512;
  EXPECT_FALSE(batch_norm_remark(deck).has_value());
  deck.batch.micro = 16;
  deck.model = test::mlp({});
  EXPECT_FALSE(batch_norm_remark(deck).has_value());
}

TEST(Advice, TheHostMustHoldTheWholePlan) {
  ReplicaOptions options;
  MemoryPlan plan;
  plan.parameters = 600;
  plan.host_checkpoint = 500;
  const auto shortage = [&](std::int64_t bytes, DeviceKind target) {
    return memory_shortage(plan, options, {}, 0, target, bytes);
  };
  EXPECT_FALSE(shortage(1100, DeviceKind::cpu));
  ASSERT_TRUE(shortage(1099, DeviceKind::cpu));
  EXPECT_THAT(*shortage(1099, DeviceKind::cpu),
              HasSubstr("a rank needs 1.1 KiB, but this host has 1.1 KiB"));
  EXPECT_TRUE(shortage(1099, DeviceKind::emulated));
  EXPECT_FALSE(shortage(600, DeviceKind::cuda));  // the copy is in host memory
}

/// A GPT whose head is larger than the rest of it, on a GPU.
TEST(Advice, AShortageOfMemoryNamesASmallerTileOfTheHead) {
  ReplicaOptions options;
  options.model = test::model_of(model::TransformerOptions{.layers = 1,
                                                           .heads = 1,
                                                           .width = 64,
                                                           .context = 1024,
                                                           .kv_heads = 1,
                                                           .mlp_width = 256,
                                                           .vocabulary = 50304});
  options.outputs.count = 50304;
  options.global = options.micro = 16;
  options.compute = DType::bfloat16;
  const parallel::MeshShape shape;
  const MemoryPlan plan = Replica::measure(options, shape, 0, DeviceKind::cuda);
  const auto shortage = [&](std::int64_t bytes) {
    return memory_shortage(plan, options, shape, 0, DeviceKind::cuda, bytes);
  };
  EXPECT_FALSE(shortage(plan.total()));
  options.model.as<model::TransformerOptions>().head_tile_mb = 256;
  const std::int64_t smaller = Replica::measure(options, shape, 0, DeviceKind::cuda).total();
  options.model.as<model::TransformerOptions>().head_tile_mb = 0;
  EXPECT_LT(smaller, plan.total() - (std::int64_t{512} << 20));
  const std::optional<std::string> named = shortage(smaller);
  ASSERT_TRUE(named);
  EXPECT_THAT(*named, HasSubstr("model.head_tile_mb = 256 it needs"));
  const std::optional<std::string> hopeless = shortage(1 << 20);
  ASSERT_TRUE(hopeless);
  EXPECT_THAT(*hopeless, AllOf(Not(HasSubstr("head_tile_mb")), HasSubstr("batch.micro")));
}

}  // namespace
}  // namespace trireme::train
