// SPDX-License-Identifier: Apache-2.0
//
// Tests the scaling laws (plan/laws.hpp) against published figures, and the bytes of the state
// against the memory plan.
#include "trireme/plan/laws.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "support/replica.hpp"

namespace trireme::plan {
namespace {

TEST(Laws, Gpt3Costs3646PetaflopDays) {
  const double flops = training_flops({175e9, 300e9});
  EXPECT_DOUBLE_EQ(flops, 3.15e23);
  // Brown et al. 2020 (GPT-3), table D.1: 3640.
  EXPECT_NEAR(petaflop_days(flops), 3646, 0.5);
}

TEST(Laws, ThirteenBillionParametersCost72222GpuHours) {
  const double flops = training_flops({13e9, 1e12});
  EXPECT_DOUBLE_EQ(flops, 7.8e22);
  EXPECT_NEAR(gpu_hours(flops, 300e12), 72222, 0.5);
}

TEST(Laws, TheOptimumSpendsTheBudget) {
  for (const double flops : {1e18, 5.76e23}) {
    const ModelAndData best = compute_optimal(flops);
    EXPECT_DOUBLE_EQ(training_flops(best), flops);
    EXPECT_DOUBLE_EQ(best.tokens_per_parameter(), 20);
    EXPECT_NEAR(best.parameters / std::sqrt(flops), 0.091, 5e-4);
    EXPECT_NEAR(best.tokens / std::sqrt(flops), 1.83, 5e-3);
  }
  // The budget of Chinchilla: 70 billion parameters on 1.4 trillion tokens (Hoffmann et al. 2022).
  EXPECT_NEAR(compute_optimal(5.76e23).parameters, 70e9, 1e9);
}

TEST(Laws, TheOtherFormHasTwoTokensAParameterAndExceedsTheBudget) {
  const ModelAndData form = quoted_square_root_form(1e20);
  EXPECT_DOUBLE_EQ(form.parameters, 7e9);
  EXPECT_DOUBLE_EQ(form.tokens, 14e9);
  EXPECT_DOUBLE_EQ(form.tokens_per_parameter(), 2);
  EXPECT_NEAR(training_flops(form) / 1e20, 5.88, 1e-9);
}

TEST(Laws, GpusHoldTheBytesTogether) {
  EXPECT_EQ(gpus_for(80e9, 80e9), 1);
  EXPECT_EQ(gpus_for(80.1e9, 80e9), 2);
  EXPECT_EQ(gpus_for(1, 80e9), 1);
}

std::int64_t state_bytes(const train::ReplicaOptions& options, int data) {
  const train::MemoryPlan plan =
      train::Replica::measure(options, {.data = data}, 0, DeviceKind::cuda);
  return plan.parameters + plan.gradients + plan.optimizer;
}

// With twice the layers the embedding, the tables of the optimizer and buffers of two blocks
// cancel.
TEST(Laws, BytesOfTheStateAreThoseOfTheMemoryPlan) {
  constexpr int layers = 8, data = 8;
  constexpr double width = 1024;
  // Four and eight square matrices; biases and norms are 13 vectors.
  constexpr double parameters = layers * (12 * width * width + 13 * width);
  const StateBytes state;
  for (const auto shard : {parallel::ShardKind::none, parallel::ShardKind::parameters}) {
    const auto bytes_of = [&](std::int64_t count) {
      train::ReplicaOptions options = test::small_gpt(count, static_cast<std::int64_t>(width));
      options.compute = DType::bfloat16;
      options.optimizer.rule = &optim::rule("adamw");
      options.shard = shard;
      options.global = data * options.micro;
      return static_cast<double>(state_bytes(options, data));
    };
    const double more = (bytes_of(2 * layers) - bytes_of(layers)) / parameters;
    const double expected =
        shard == parallel::ShardKind::none ? state.replicated() : state.sharded() / data;
    // Tables of rows and chunks are the rest.
    EXPECT_NEAR(more / expected, 1, 0.02);
  }
}

}  // namespace
}  // namespace trireme::plan
