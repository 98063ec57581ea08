// SPDX-License-Identifier: Apache-2.0
//
// Tests that training works on one rank: losses fall with every optimizer and precision, evaluation
// changes nothing, missing rows and losses that are not finite leave the weights as they were.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "support/replica.hpp"
#include "support/update_rules.hpp"

namespace trireme::train {
namespace {

/// Returns the mean loss of the last of `steps` steps over the same few micro-batches.
double loss_after(ReplicaOptions options, int steps, double rate) {
  if (options.compute == DType::float16)
    options.loss_scale = {.initial = 1024};  // Small enough that no step overflows.
  test::ReplicaFixture fixture(options);
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    loss = fixture.gradients() / static_cast<double>(options.micro * options.accumulation);
    EXPECT_TRUE(fixture.optimizer()
                    .step(fixture.replica.context(), rate, true, fixture.reduced_gradient.scale)
                    .applied);
  }
  return loss;
}

TEST(Learning, EvaluationsDoNotSmoothLabelsAndStepsDo) {
  for (ReplicaOptions options : {test::small_resnet(), test::small_gpt()}) {
    test::ReplicaFixture plain(options);
    options.loss.label_smoothing = 0.3;
    test::ReplicaFixture smoothed(options);
    EXPECT_EQ(smoothed.evaluate(smoothed.batch(0)).loss, plain.evaluate(plain.batch(0)).loss);
    EXPECT_NE(smoothed.gradients(), plain.gradients());
  }
}

TEST(Learning, EveryOptimizerAndPrecisionBringsTheLossDown) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const auto& [word, rate, reference] : test::rule_cases) {
      ReplicaOptions options = test::small_resnet();
      options.compute = compute;
      options.optimizer.rule = &optim::rule(word);
      const double start = loss_after(options, 1, rate), end = loss_after(options, 40, rate);
      EXPECT_LT(end, 0.5 * start) << to_string(compute) << " " << word;
    }
  }
}

TEST(Learning, ATransformerLearnsToCount) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    ReplicaOptions options = test::small_gpt(2, 32);
    options.model.as<model::TransformerOptions>().dropout = 0;
    options.compute = compute;
    EXPECT_LT(loss_after(options, 150, 0.003) / 8, 0.3 * loss_after(options, 1, 0.003) / 8)
        << to_string(compute);
  }
}

TEST(Learning, EvaluationUsesRunningStatisticsAndTouchesNothing) {
  test::ReplicaFixture fixture(test::small_resnet());
  for (int step = 0; step < 60; ++step) {
    fixture.step(0.05);
  }
  const Tensor master = fixture.store().flat_master();
  const std::vector<float> before(master.as<float>(), master.as<float>() + master.elements());
  const Sums sums = fixture.evaluate(fixture.batch(0));
  EXPECT_EQ(sums.count, 10);
  // The model was trained on this batch. After 60 steps the running statistics equal the batch's up
  // to a factor of 0.9^60.
  EXPECT_GE(sums.top1, 9);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), master.as<float>()));
}

TEST(Learning, MissingRowsCountNowhere) {
  test::ReplicaFixture fixture(test::small_resnet());
  data::MicroBatch batch = fixture.batch(0);
  const Sums whole = fixture.evaluate(batch);
  for (std::size_t b = 6; b < 10; ++b) fixture.labels[b] = -1;
  const Sums part = fixture.evaluate(batch);
  EXPECT_EQ(whole.count, 10);
  EXPECT_EQ(part.count, 6);
  EXPECT_LT(part.loss, whole.loss);
}

TEST(Learning, ALossThatIsNotFiniteMovesNothing) {
  test::ReplicaFixture fixture(test::small_resnet());
  fixture.gradients();
  const Tensor master = fixture.store().flat_master();
  fixture.store().flat_gradient().as<float>()[5] = std::nanf("");
  const std::vector<float> before(master.as<float>(), master.as<float>() + master.elements());
  const optim::StepOutcome outcome = fixture.optimizer().step(fixture.replica.context(), 0.1, true);
  EXPECT_FALSE(outcome.applied);
  EXPECT_EQ(fixture.optimizer().updates(), 0);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), master.as<float>()));
}

/// Returns the losses of `steps` steps over the same few micro-batches, and the number of dropped
/// steps.
std::pair<std::vector<double>, int> curve(ReplicaOptions options, int steps, double rate) {
  test::ReplicaFixture fixture(options);
  std::vector<double> losses;
  int dropped = 0;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(fixture.gradients() /
                     static_cast<double>(options.global * options.labels_per_sample()));
    const optim::StepOutcome outcome = fixture.optimizer().step(
        fixture.replica.context(), rate, true, fixture.reduced_gradient.scale);
    EXPECT_NE(outcome.applied, outcome.overflow);
    dropped += outcome.applied ? 0 : 1;
  }
  return {losses, dropped};
}

/// Tolerance: rounding to 11 bits makes a few errors of 2^-11 each, over steps that stay close.
TEST(Learning, InFloat16LossesAreNearThoseOfFloat32) {
  ReplicaOptions gpt = test::small_gpt(2, 32);
  gpt.model.as<model::TransformerOptions>().dropout = 0;
  for (const auto& [model, rate] : {std::pair{test::small_resnet(), 0.005}, {gpt, 0.001}}) {
    ReplicaOptions options = model;
    const std::vector<double> exact = curve(options, 20, rate).first;
    options.compute = DType::float16;
    options.loss_scale.emplace();
    const auto [rounded, dropped] = curve(options, 20, rate);
    EXPECT_LT(dropped, 8) << "of a scale that is too large at first";
    for (std::size_t step = 0; step + static_cast<std::size_t>(dropped) < exact.size(); ++step) {
      const double found = rounded[step + static_cast<std::size_t>(dropped)];
      EXPECT_NEAR(found, exact[step], 0.02 * exact[step]) << "step " << step;
    }
    EXPECT_LT(rounded.back(), 0.95 * rounded.front());
  }
}

double first_norm(ReplicaOptions options) {
  test::ReplicaFixture fixture(options);
  fixture.gradients();
  return fixture.optimizer()
      .step(fixture.replica.context(), 0, true, fixture.reduced_gradient.scale)
      .grad_norm;
}

/// Unscaled float16 gradients lose values of 2^-24 and below; scaled gradients keep them.
TEST(Learning, TheLossScaleKeepsSmallGradients) {
  ReplicaOptions options = test::small_gpt(2, 32);
  options.model.as<model::TransformerOptions>().dropout = 0;
  options.global =
      options.micro
      << 20;  // This micro-batch is a small part of the step, so its gradient is small.
  const double exact = first_norm(options);
  options.compute = DType::float16;
  const double lost = first_norm(options);
  options.loss_scale.emplace();
  const double kept = first_norm(options);
  EXPECT_GT(std::abs(lost - exact), 0.2 * exact);
  EXPECT_NEAR(kept, exact, 0.01 * exact);
}

}  // namespace
}  // namespace trireme::train
