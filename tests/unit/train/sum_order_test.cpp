// SPDX-License-Identifier: Apache-2.0
//
// Tests which order of sums is chosen: the tree for small models on the CPU and for deterministic
// runs, the library's all-reduce for everything else.
#include <gtest/gtest.h>

#include "support/replica.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/step/sum_order.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t small = 1000, limit = (std::int64_t{128} << 20) / 4;

comm::SumOrder order(const ReplicaOptions& options, DeviceKind target, std::int64_t weights,
                     int replicas) {
  return choose_sum_order(options, target, weights, replicas).order;
}

TEST(SumOrder, IsTheTreeForSmallModelsOnTheCpu) {
  const ReplicaOptions options = test::small_resnet();
  for (const int replicas : {1, 2, 4, 8, 16})
    EXPECT_EQ(order(options, DeviceKind::cpu, small, replicas), comm::SumOrder::tree) << replicas;
  for (const int replicas : {3, 6, 12, 32, 64})
    EXPECT_EQ(order(options, DeviceKind::cpu, small, replicas), comm::SumOrder::library)
        << replicas;
  EXPECT_EQ(order(options, DeviceKind::cpu, limit, 16), comm::SumOrder::tree);
  EXPECT_EQ(order(options, DeviceKind::cpu, limit + 1, 16), comm::SumOrder::library);
}

TEST(SumOrder, IsTheLibrarysOnDevicesUnlessTheRunIsDeterministic) {
  ReplicaOptions options = test::small_resnet();
  for (const DeviceKind device : {DeviceKind::cuda, DeviceKind::emulated}) {
    for (const int replicas : {1, 2, 64})
      EXPECT_EQ(order(options, device, small, replicas), comm::SumOrder::library);
  }
  options.deterministic = true;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda, DeviceKind::emulated})
    EXPECT_EQ(order(options, device, 2 * limit, 3), comm::SumOrder::tree);
}

TEST(SumOrder, IsTheLibrarysForShardedGradients) {
  ReplicaOptions options = test::small_resnet();
  options.shard = parallel::ShardKind::optimizer;
  EXPECT_EQ(order(options, DeviceKind::cpu, small, 2), comm::SumOrder::tree);
  for (const auto shard : {parallel::ShardKind::gradients, parallel::ShardKind::parameters}) {
    options.shard = shard;
    EXPECT_EQ(order(options, DeviceKind::cpu, small, 2), comm::SumOrder::library);
  }
}

TEST(SumOrder, IsDescribedWithItsReason) {
  ReplicaOptions options = test::small_resnet();
  const auto text = [&](DeviceKind device, std::int64_t weights, int replicas) {
    return describe_sum_order(choose_sum_order(options, device, weights, replicas));
  };
  EXPECT_EQ(text(DeviceKind::cpu, small, 2), "tree order (a small model on 2 CPU replicas)");
  EXPECT_EQ(text(DeviceKind::cpu, small, 3),
            "the library's all-reduce (3 replicas are not 1, 2, 4, 8 or 16)");
  EXPECT_EQ(text(DeviceKind::cpu, 2 * limit, 2),
            "the library's all-reduce (gradients of 256.0 MiB are more than 128.0 MiB)");
  EXPECT_EQ(text(DeviceKind::cuda, small, 2), "the library's all-reduce (the fastest on GPUs)");
  options.deterministic = true;
  EXPECT_EQ(text(DeviceKind::cuda, small, 2), "tree order (run.deterministic = true)");
}

/// ResNet-50 on 64 GPUs: the levels of the tree would hold several copies of the gradients.
TEST(SumOrder, GradientsOfAGpuRunAreHeldOnce) {
  ReplicaOptions options = test::small_resnet();
  options.accumulation = 4;
  options.global = options.micro * 4 * 64;
  const std::int64_t plain = Replica::measure(options, {.data = 64}, 0, DeviceKind::cuda).gradients;
  options.deterministic = true;
  const std::int64_t tree = Replica::measure(options, {.data = 64}, 0, DeviceKind::cuda).gradients;
  EXPECT_GT(tree, 2 * plain);
}

}  // namespace
}  // namespace trireme::train
