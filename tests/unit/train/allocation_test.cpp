// SPDX-License-Identifier: Apache-2.0
//
// A steady training step allocates nothing with operator new, whatever the model and its options.
#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "support/replica.hpp"

namespace trireme::train {
namespace {

std::int64_t allocations_in_a_steady_step(const ReplicaOptions& options) {
  test::ReplicaFixture fixture(options);
  for (int step = 0; step < 2; ++step) fixture.step(0.01);
  const std::int64_t before = allocations_so_far();
  fixture.step(0.01);
  return allocations_so_far() - before;
}

TEST(Allocation, IsSeenWhereItHappens) {
  const std::int64_t before = allocations_so_far();
  const std::vector<int>* vector = new std::vector<int>(100);
  EXPECT_GE(allocations_so_far() - before, 1);
  delete vector;
}

TEST(Allocation, DoesNotHappenInASteadyStep) {
  EXPECT_EQ(allocations_in_a_steady_step(test::small_resnet()), 0);
  ReplicaOptions options = test::small_resnet(18, 8);
  options.compute = DType::bfloat16;
  options.accumulation = 2;
  options.global = 20;
  options.deterministic = true;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options.compute = DType::float16;
  options.loss_scale.emplace();
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options = test::small_gpt();
  options.accumulation = 2;
  options.global = 4;
  options.recompute = 2;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options.offload.activations = true;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options.shard = parallel::ShardKind::parameters;
  options.offload.optimizer = options.offload.parameters = true;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
}

}  // namespace
}  // namespace trireme::train
