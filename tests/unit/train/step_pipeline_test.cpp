// SPDX-License-Identifier: Apache-2.0
//
// The outcome of a step in which each replica applied its own gradient.
#include "trireme/train/step/step_pipeline.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::train {
namespace {

constexpr std::int32_t num_tensors = 5;  // stands for running statistics, too

/// Returns the tensor of a step in which these are the tensors of the replicas; -1: none.
std::int32_t tensor_of(const std::vector<std::int32_t>& tensors) {
  std::vector<optim::StepOutcome> replicas;
  for (const std::int32_t tensor : tensors)
    replicas.push_back({.applied = tensor < 0, .nonfinite_tensor = tensor});
  return reduce_outcomes(replicas, num_tensors).nonfinite_tensor;
}

TEST(ReduceOutcomes, NamesTheLastTensorOverReplicas) {
  EXPECT_EQ(tensor_of({-1, -1}), -1);
  EXPECT_EQ(tensor_of({-1, 0}), 0);
  EXPECT_EQ(tensor_of({1, 3}), 3);
  EXPECT_EQ(tensor_of({3, -1, 1}), 3);
}

TEST(ReduceOutcomes, NamesRunningStatisticsOnlyWithoutATensor) {
  EXPECT_EQ(tensor_of({-1, num_tensors}), num_tensors);
  EXPECT_EQ(tensor_of({num_tensors, 2}), 2);
  EXPECT_EQ(tensor_of({2, num_tensors}), 2);
}

TEST(ReduceOutcomes, AStepCountsAsAppliedIfAllReplicasApplyIt) {
  const optim::StepOutcome good{.grad_norm = 3},
      overflow{.applied = false, .grad_norm = 1, .overflow = true}, bad{.applied = false};
  EXPECT_TRUE(reduce_outcomes({good, good}, num_tensors).applied);
  EXPECT_DOUBLE_EQ(reduce_outcomes({good, overflow}, num_tensors).grad_norm, std::sqrt(5));
  EXPECT_FALSE(reduce_outcomes({good, overflow}, num_tensors).applied);
  EXPECT_TRUE(reduce_outcomes({good, overflow}, num_tensors).overflow);
  EXPECT_FALSE(reduce_outcomes({overflow, bad}, num_tensors).overflow);
}

}  // namespace
}  // namespace trireme::train
