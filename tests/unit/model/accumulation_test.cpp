// SPDX-License-Identifier: Apache-2.0
//
// Gradients of several micro-batches equal the gradient of one large batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/replica.hpp"

namespace trireme::model {
namespace {

TEST(Accumulation, GivesTheGradientOfTheWholeBatch) {
  // Group norm: batch norm uses the statistics of each micro-batch, so it would differ.
  train::ReplicaOptions whole = test::small_resnet();
  whole.model.as<ResnetOptions>().norm = ImageNormKind::group;
  train::ReplicaOptions halves = whole;
  halves.micro = 5;
  halves.accumulation = 2;
  for (const bool deterministic : {false, true}) {
    halves.deterministic = deterministic;
    test::ReplicaFixture one(whole), two(halves);
    one.gradients();
    two.reducer().begin_step();
    for (const parallel::PipelineAction& action : two.replica.stage().schedule()) {
      if (!action.forward) {
        two.replica.stage().backward(action);
        continue;
      }
      const data::MicroBatch batch = two.batch(0);
      const std::int64_t samples = 5 * action.micro_batch, pixels = halves.image.elements();
      std::copy_n(one.images.begin() + samples * pixels, 5 * pixels, two.images.begin());
      std::copy_n(one.labels.begin() + samples, 5, two.labels.begin());
      two.replica.stage().forward(action, &batch);
    }
    two.reducer().finish(two.replica.context());
    const Tensor a = one.store().flat_gradient(), b = two.store().flat_gradient();
    ASSERT_EQ(a.elements(), b.elements());
    double difference = 0, norm = 0;
    for (std::int64_t i = 0; i < a.elements(); ++i) {
      difference += std::pow(a.as<float>()[i] - b.as<float>()[i], 2);
      norm += std::pow(a.as<float>()[i], 2);
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(difference / norm), 1e-5) << "deterministic " << deterministic;
  }
}

}  // namespace
}  // namespace trireme::model
