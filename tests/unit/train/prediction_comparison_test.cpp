// SPDX-License-Identifier: Apache-2.0
//
// The lines that compare a run with its prediction.

#include "trireme/train/records/prediction_comparison.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::train {
namespace {

using testing::EndsWith;

StepTimes times_of(double seconds) {
  StepTimes times;
  times.data = 0.05 * seconds;
  times.forward = 0.25 * seconds;
  times.backward = 0.5 * seconds;
  times.optimizer = 0.1 * seconds;
  times.comm_exposed = 0.1 * seconds;
  times.total = seconds;
  return times;
}

MachinePrediction predicted() {
  return {.machine = "made_up",
          .peak_flops = 1e9,
          .step = StepPrediction{.step = 0.1,
                                 .forward = 0.02,
                                 .backward = 0.05,
                                 .update = 0.01,
                                 .waiting = 0.02,
                                 .checkpoint = 2.0}};
}

TEST(PredictionComparison, HasTheMeanOfEachPart) {
  PredictionComparison comparison({.prediction = predicted(), .flops_per_rank = 5e7});
  for (const double seconds : {5.0, 6.0, 0.1, 0.3}) comparison.add_step(times_of(seconds));
  comparison.add_evaluation(1);
  comparison.add_evaluation(3);
  comparison.add_checkpoint(3);
  const std::vector<std::string> expected{
      "prediction for made_up: means of rank 0 over 2 steps, without the first 2; ratio = "
      "measured / predicted",
      "prediction: step: predicted 100 ms, measured 200 ms, ratio 2.00",
      "prediction: forward: predicted 20 ms, measured 50 ms, ratio 2.50",
      "prediction: backward: predicted 50 ms, measured 100 ms, ratio 2.00",
      "prediction: update: predicted 10 ms, measured 20 ms, ratio 2.00",
      "prediction: waiting for other ranks: predicted 20 ms, measured 20 ms, ratio 1.00",
      "prediction: waiting for data: not predicted, measured 10 ms",
      "prediction: MFU: predicted 50.0 %, measured 25.0 %",
      "prediction: evaluation, mean of 2: not predicted, measured 2 s",
      "prediction: checkpoint: predicted 2 s, measured 3 s, ratio 1.50"};
  EXPECT_EQ(comparison.lines(), expected);
}

TEST(PredictionComparison, TheFirstStepsAreLeftOut) {
  PredictionComparison comparison({.prediction = predicted()});
  EXPECT_TRUE(comparison.lines().empty());
  const std::string head = "prediction for made_up: means of rank 0 over ",
                    tail = "; ratio = measured / predicted";
  for (int step = 1; step <= 30; ++step) {
    comparison.add_step(times_of(step <= 10 ? 0.3 : 0.1));
    const std::vector<std::string> lines = comparison.lines();
    const std::string steps = step == 1 ? "1 step"
                              : step < 20
                                  ? std::to_string(step - step / 2)
                                  : std::to_string(step - 10) + " steps, without the first 10";
    EXPECT_EQ(lines[0].substr(0, (head + steps).size()), head + steps);
    EXPECT_THAT(lines[0], EndsWith(tail));
    if (step < 20) continue;
    EXPECT_EQ(lines[1], "prediction: step: predicted 100 ms, measured 100 ms, ratio 1.00");
  }
}

TEST(PredictionComparison, ADeviceThatTheHostDoesNotWaitForHasOnePart) {
  PredictionComparison comparison({.prediction = predicted(), .host_computes = false});
  comparison.add_step(times_of(0.2));
  const std::vector<std::string> lines = comparison.lines();
  EXPECT_EQ(lines[2],
            "prediction: computation and communication: predicted 100 ms, measured 190 ms, ratio "
            "1.90");
  EXPECT_EQ(lines[3], "prediction: waiting for data: not predicted, measured 10 ms");
}

TEST(PredictionComparison, WithoutAPredictionThereAreNoLines) {
  PredictionComparison comparison({.prediction = {.machine = "made_up", .peak_flops = 1e9}});
  comparison.add_step(times_of(0.2));
  EXPECT_TRUE(comparison.lines().empty());
}

}  // namespace
}  // namespace trireme::train
