#include <gtest/gtest.h>

#include "support/replica.hpp"

namespace trireme::train {
namespace {

void expect_exact(const ReplicaOptions& options) {
  test::ReplicaFixture fixture(options);
  for (int step = 0; step < 2; ++step) {
    fixture.gradients();
    fixture.replica.optimizer().step(fixture.replica.context(), 0.01, true);
  }
  fixture.replica.evaluate(fixture.batch(0));
  const MemoryPlan used = fixture.replica.peaks();
  EXPECT_EQ(used.parameters, fixture.plan.parameters);
  EXPECT_EQ(used.gradients, fixture.plan.gradients);
  EXPECT_EQ(used.optimizer, fixture.plan.optimizer);
  EXPECT_EQ(used.activations, fixture.plan.activations);
  EXPECT_EQ(used.flow[0], fixture.plan.flow[0]);
  EXPECT_EQ(used.flow[1], fixture.plan.flow[1]);
  EXPECT_EQ(used.workspace, fixture.plan.workspace);
  EXPECT_EQ(used.library, fixture.plan.library);
  EXPECT_EQ(used.scalars, fixture.plan.scalars);
  EXPECT_GT(used.activations, 0);
}

TEST(MemoryPlan, IsWhatARunReallyTakes) { expect_exact(test::small_resnet()); }

TEST(MemoryPlan, IsExactInBfloat16WithAccumulationAndTheTree) {
  ReplicaOptions options = test::small_resnet(18, 8);
  options.compute = DType::bfloat16;
  options.accumulation = 3;
  options.global = 30;
  options.deterministic = true;
  expect_exact(options);
}

TEST(MemoryPlan, IsExactForThePooledStemGroupNormAndAdamW) {
  ReplicaOptions options = test::small_resnet(50, 4);
  options.model.stem = model::ResnetStem::imagenet;
  options.model.norm = model::ResnetNorm::group;
  options.optimizer.kind = optim::OptimizerKind::adamw;
  options.image = {33, 31, 3};
  expect_exact(options);
}

TEST(MemoryPlan, CountsTheLevelsOfTheTree) {
  ReplicaOptions options = test::small_resnet();
  options.accumulation = 8;
  options.global = 240;
  const MemoryPlan plain = Replica::measure(options, 0, 3, DeviceKind::cpu);
  options.deterministic = true;
  const MemoryPlan tree = Replica::measure(options, 0, 3, DeviceKind::cpu);
  EXPECT_EQ(tree.gradients, plain.gradients * 5);  // 1 + ceil(log2 8) buffers and the partner's part instead of one
  EXPECT_EQ(tree.activations, plain.activations);
}

TEST(MemoryPlan, ASmallModelAtAPowerOfTwoOfReplicasIsAddedUpByTheTreeInAnyCase) {
  ReplicaOptions options = test::small_resnet();
  options.accumulation = 8;
  for (const int replicas : {1, 2, 4}) {
    options.global = 80 * replicas;
    options.deterministic = false;
    const MemoryPlan plain = Replica::measure(options, 0, replicas, DeviceKind::cpu);
    options.deterministic = true;
    EXPECT_EQ(plain, Replica::measure(options, 0, replicas, DeviceKind::cpu));
  }
}

}  // namespace
}  // namespace trireme::train
