// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/training.hpp"

namespace trireme::train {
namespace {

using parallel::Offload;
using parallel::ShardKind;

constexpr Offload slots_away{.optimizer = true}, masters_away{.parameters = true},
    both_away{.optimizer = true, .parameters = true};

ReplicaOptions with(ReplicaOptions options, const Offload& offload) {
  options.offload = offload;
  return options;
}

/// Tests a residual network (running statistics) and a transformer (tied embedding). With sharded
/// parameters one rank streams its weights too.
TEST(StateOffload, LeavesEveryBitOfEveryOptimizer) {
  for (ReplicaOptions options : {test::small_resnet(14), test::small_gpt(3)}) {
    options.bucket_bytes = 4096;  // Larger tensors are cut.
    options.accumulation = 2;
    options.global = 2 * options.micro;
    options.optimizer.weight_decay = 0.05;
    options.optimizer.clip_norm = 1;
    for (const optim::UpdateRule* rule : optim::rules()) {
      for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
        options.optimizer.rule = rule;
        options.compute = compute;
        options.optimizer.ema = compute != DType::float32 ? 0.9 : 0;
        options.shard = ShardKind::none;
        test::expect_same_bits(test::train_three_steps(with(options, slots_away)),
                               test::train_three_steps(options));
        options.shard = ShardKind::parameters;
        const test::TrainingResult plain = test::train_three_steps(options);
        for (const Offload& offload : {slots_away, masters_away, both_away})
          test::expect_same_bits(test::train_three_steps(with(options, offload)), plain);
      }
    }
  }
}

/// 8 blocks of 12 x 64 x 64 weights and a tied embedding; windows of a quarter of a block.
TEST(StateOffload, TheDeviceKeepsBucketBuffersAndStaging) {
  constexpr std::int64_t width = 64, layers = 8, slots = 2, window = 48 << 10;
  ReplicaOptions options = test::small_gpt(layers, width);
  options.shard = ShardKind::parameters;
  options.bucket_bytes = window;
  // The longest row, and the alignment gap behind a bucket's last tensor.
  const std::int64_t row = 4 * 4 * width, gap = 4 * 16;
  const std::int64_t staging = 2 * (window + row + gap);
  const std::int64_t block = 4 * (12 * width * width + 13 * width) + 16 * gap;
  // A tied embedding has its own buffer.
  const std::int64_t embedding = 4 * options.outputs.count * width;
  for (const int data : {1, 4}) {
    options.global = data * options.micro;
    const parallel::MeshShape shape{.data = data};
    const MemoryPlan here = Replica::measure(options, shape, 0, DeviceKind::cpu);
    const MemoryPlan both = Replica::measure(with(options, both_away), shape, 0, DeviceKind::cpu);
    EXPECT_EQ(here.host_total(), 0);
    EXPECT_EQ(both.host_optimizer, slots * both.host_parameters);
    EXPECT_GE(both.host_parameters * data, layers * 4 * 12 * width * width);
    EXPECT_LE(both.parameters, staging + 2 * block + embedding + gap);
    EXPECT_LE(both.optimizer, slots * staging);
    EXPECT_EQ(both.gradients, here.gradients);
    EXPECT_EQ(both.all_activations(), here.all_activations());

    const MemoryPlan slots_only =
        Replica::measure(with(options, slots_away), shape, 0, DeviceKind::cpu);
    EXPECT_EQ(slots_only.host_optimizer, here.optimizer);
    EXPECT_EQ(slots_only.optimizer, both.optimizer);
    EXPECT_EQ(slots_only.total(), here.total() - slots_only.host_optimizer + slots_only.optimizer)
        << "less by what went, more by staging";

    const MemoryPlan masters_only =
        Replica::measure(with(options, masters_away), shape, 0, DeviceKind::cpu);
    EXPECT_EQ(masters_only.host_parameters, both.host_parameters);
    EXPECT_EQ(masters_only.parameters, both.parameters);
    if (data > 1) {
      EXPECT_EQ(masters_only.parameters,
                here.parameters - masters_only.host_parameters + both.optimizer / slots)
          << "the same staging as a slot's";
    }
  }
}

}  // namespace
}  // namespace trireme::train
