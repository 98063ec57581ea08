// SPDX-License-Identifier: Apache-2.0
//
// Tests predict (plan/prediction.hpp): memory and traffic of a layout, and what follows from the
// predicted step.
#include "trireme/plan/prediction.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/replica.hpp"
#include "trireme/base/error.hpp"
#include "trireme/train/model_flops.hpp"

namespace trireme::plan {
namespace {

/// The layout of `options` on `data` ranks.
train::ResolvedLayout layout_of(const train::ReplicaOptions& options, int data) {
  train::ResolvedLayout layout;
  layout.data = data;
  layout.global = options.global;
  layout.accumulation = options.accumulation;
  layout.total_steps = 1000;
  return layout;
}

train::ReplicaOptions options_for(int ranks) {
  train::ReplicaOptions options = test::small_resnet(18, 8);
  options.global = ranks * options.micro;
  return options;
}

TEST(Prediction, FollowsFromTheStepAndTheMachine) {
  const Machine machine = read_machine("h100");
  const train::ReplicaOptions options = options_for(16);
  const Prediction run = predict(options, layout_of(options, 16), DeviceKind::cpu, machine);
  EXPECT_EQ(run.nodes, 2);
  ASSERT_GT(run.step_seconds, 0);
  EXPECT_DOUBLE_EQ(run.samples_per_s, static_cast<double>(options.global) / run.step_seconds);
  EXPECT_DOUBLE_EQ(*run.run_seconds, 1000 * run.step_seconds);
  EXPECT_DOUBLE_EQ(*run.mfu(), run.model_flops / run.step_seconds / 16 / machine.peak.float32);
  EXPECT_DOUBLE_EQ(*run.energy_joules, *run.run_seconds * 2 * machine.node.watts);
  // The first and the last data rank of the only stage.
  ASSERT_EQ(run.places.size(), 2);
  EXPECT_EQ(run.places[1].rank, 15);
  EXPECT_EQ(run.places[0].memory,
            train::Replica::measure(options, {.data = 16}, 0, DeviceKind::cpu));
}

TEST(Prediction, ScalingIsChargedOnceAndToSeveralRanksOnly) {
  Machine machine = read_machine("h100");
  // Nothing but compute takes time.
  machine.memory.bytes_per_s = 1e30;
  machine.overhead.launch_seconds = 0;
  machine.node_link = {};
  machine.node_link.bytes_per_s = 1e30;
  const auto seconds = [&](int ranks, double scaling) {
    machine.scaling.compute = scaling;
    const train::ReplicaOptions options = options_for(ranks);
    return predict(options, layout_of(options, ranks), DeviceKind::cuda, machine).step_seconds;
  };
  EXPECT_GT(seconds(1, 1), 0);
  EXPECT_DOUBLE_EQ(seconds(1, 0.5), seconds(1, 1));
  EXPECT_NEAR(seconds(2, 0.5), 2 * seconds(2, 1), 1e-9 * seconds(2, 1));
}

TEST(Prediction, RecomputationIsWorkButNotOfTheModel) {
  const Machine machine = read_machine("h100");
  train::ReplicaOptions options = options_for(1);
  const Prediction plain = predict(options, layout_of(options, 1), DeviceKind::cpu, machine);
  EXPECT_DOUBLE_EQ(plain.executed_flops, plain.model_flops);
  options.recompute = 1;
  const Prediction again = predict(options, layout_of(options, 1), DeviceKind::cpu, machine);
  EXPECT_DOUBLE_EQ(again.model_flops, plain.model_flops);
  EXPECT_GT(again.executed_flops, 1.2 * plain.model_flops);
  EXPECT_GT(again.step_seconds, plain.step_seconds);
}

/// The ranks of a layout execute the FLOPs of the model together, beside what they recompute.
TEST(Prediction, EveryLayoutHasTheFlopsOfTheModel) {
  for (train::ReplicaOptions options : {test::small_resnet(18, 8), test::small_gpt(4)}) {
    options.global = 4 * options.micro;
    const double expected =
        train::model_flops_of_a_sample(options) * static_cast<double>(options.global);
    std::vector<parallel::MeshShape> shapes{{}, {.data = 2}, {.pipeline = 2}};
    if (options.tokens()) {
      shapes.push_back({.tensor = 2});
      shapes.push_back({.data = 2, .tensor = 2, .pipeline = 2});
    }
    for (const parallel::MeshShape& shape : shapes) {
      options.accumulation = 4 / shape.data;
      double flops = 0, recomputed = 0;
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        const StepRecord record = record_step(options, shape, rank, DeviceKind::cpu);
        flops += record.flops();
        for (std::size_t i = 0; i < record.ops.size(); ++i)
          recomputed += record.ops[i].recomputed_flops * static_cast<double>(record.counts[i]);
      }
      EXPECT_EQ(recomputed > 0, options.tokens());  // the scores of attention
      EXPECT_EQ(flops - recomputed, expected)
          << shape.data << " x " << shape.tensor << " x " << shape.pipeline;
    }
  }
}

TEST(Prediction, ThePeakIsThatOfThePrecision) {
  const Machine machine = read_machine("h100");
  train::ReplicaOptions options = options_for(1);
  EXPECT_EQ(peak_flops(machine, options), machine.peak.float32);
  options.tfloat32 = true;
  EXPECT_EQ(peak_flops(machine, options), machine.peak.tfloat32);
  options.tfloat32 = false;
  options.compute = DType::float16;
  EXPECT_EQ(peak_flops(machine, options), machine.peak.float16);
  options.compute = DType::bfloat16;
  EXPECT_EQ(peak_flops(machine, options), machine.peak.bfloat16);
  options.float8 = true;
  EXPECT_EQ(peak_flops(machine, options), machine.peak.float8);
}

TEST(Prediction, ARingSendsTwiceTheGradientsButForOnePart) {
  const Machine machine = read_machine("h100");
  const train::ReplicaOptions options = options_for(4);
  const Prediction run = predict(options, layout_of(options, 4), DeviceKind::cuda, machine);
  std::int64_t gradients = 0;
  double sent = 0;
  for (const Traffic& traffic : run.places[0].traffic) {
    if (traffic.purpose != "trireme/parallel/reduce_bucket") continue;
    EXPECT_EQ(traffic.group, "data");
    gradients += traffic.bytes;
    sent += traffic.sent_bytes;
  }
  EXPECT_GT(gradients, 0);
  EXPECT_DOUBLE_EQ(sent, 2.0 * static_cast<double>(gradients) * 3 / 4);
}

/// The work of matrices is no work of the model; sharding divides it over the replicas.
TEST(Prediction, CountsTheWorkOfAnUpdateOnMatrices) {
  const Machine machine = read_machine("h100");
  const auto predicted = [&](const char* rule, parallel::ShardKind shard) {
    train::ReplicaOptions options = test::small_gpt(3);
    options.optimizer.rule = &optim::rule(rule);
    options.shard = shard;
    options.global = 4 * options.micro;
    options.accumulation = 1;
    return predict(options, layout_of(options, 4), DeviceKind::cpu, machine);
  };
  using parallel::ShardKind;
  const Prediction plain = predicted("adamw", ShardKind::none),
                   repeated = predicted("muon", ShardKind::none),
                   divided = predicted("muon", ShardKind::optimizer);
  EXPECT_DOUBLE_EQ(repeated.model_flops, plain.model_flops);
  EXPECT_EQ(plain.matrix_flops, 0);
  EXPECT_TRUE(repeated.repeats_matrices);
  EXPECT_FALSE(divided.repeats_matrices);
  EXPECT_DOUBLE_EQ(repeated.matrix_flops, 4 * divided.matrix_flops);
  EXPECT_DOUBLE_EQ(repeated.matrix_flops, 4 * repeated.busiest_matrix_flops);
  EXPECT_GE(divided.busiest_matrix_flops, divided.matrix_flops / 4);
  EXPECT_LT(divided.busiest_matrix_flops, divided.matrix_flops / 2);
  for (const Prediction& run : {repeated, divided})
    EXPECT_NEAR(run.executed_flops - plain.executed_flops, run.matrix_flops,
                1e-9 * run.executed_flops);
  // The recorded rank is the busiest one.
  EXPECT_NEAR(divided.steps().front()->flops() * 4 - plain.executed_flops,
              4 * divided.busiest_matrix_flops, 1e-9 * plain.executed_flops);
}

TEST(Prediction, ACheckpointHasWeightsStatisticsAndSlots) {
  const Machine machine = read_machine("h100");
  train::ReplicaOptions options = options_for(1);
  const auto bytes = [&] {
    return predict(options, layout_of(options, 1), DeviceKind::cpu, machine).checkpoint_bytes;
  };
  options.optimizer.rule = &optim::rule("sgd");
  const std::int64_t with_momentum = bytes();
  options.optimizer.rule = &optim::rule("adamw");
  const std::int64_t with_two_moments = bytes();
  // One more slot of 4 bytes for each weight.
  const model::Model model(options.model, options.input_shape(), {options.outputs.count},
                           {0, 1, false});
  EXPECT_EQ(with_two_moments - with_momentum, 4 * model.weight_count());
}

TEST(Prediction, TheBestIntervalIsDalys) {
  // Young: sqrt(2 d M); Daly's terms are small for a checkpoint that is short against M.
  EXPECT_NEAR(best_checkpoint_interval(10, 1e6), std::sqrt(2 * 10 * 1e6), 10);
  // d = 100, M = 5000: part = 0.1; 1000 (1 + 0.1 / 3 + 0.01 / 9) - 100.
  EXPECT_NEAR(best_checkpoint_interval(100, 5000), 934.444, 1e-3);
  EXPECT_DOUBLE_EQ(best_checkpoint_interval(100, 40), 40);
}

// The backward pass of attention makes the product of the scores again.
TEST(Prediction, ScoresOfAttentionCountOnceInTheModel) {
  const train::ReplicaOptions options = test::small_gpt(3);
  const Prediction run =
      predict(options, layout_of(options, 1), DeviceKind::cpu, read_machine("h100"));
  const auto& gpt = options.model.as<model::TransformerOptions>();
  // Two FLOPs for each pair of a token and an earlier one or itself, and each column.
  const double scores = static_cast<double>(options.global * gpt.layers * gpt.width * gpt.context *
                                            (gpt.context + 1));
  EXPECT_DOUBLE_EQ(run.executed_flops - run.model_flops, scores);
}

TEST(Prediction, FailuresCostHalfAnIntervalAndAStart) {
  Machine machine = read_machine("h100");
  Prediction run;
  run.nodes = 10;
  machine.reliability.node_mtbf_hours = 10;
  EXPECT_FALSE(expect_account(run, machine, {.interval = 600})) << "the end is not known";
  run.run_seconds = 360000;
  machine.reliability.node_mtbf_hours = 0;
  EXPECT_FALSE(expect_account(run, machine, {.interval = 600}));

  machine.reliability.node_mtbf_hours = 1000;  // of 10 nodes: 100 hours
  machine.reliability.start_seconds = 100;
  const ExpectedAccount account = *expect_account(run, machine, {.interval = 600, .wait = 2});
  EXPECT_EQ(account.checkpoint, 600 * 2);
  EXPECT_NEAR(account.failures, account.wall() / 360000, 1e-9);
  // Rare failures lose half an interval and a start each.
  EXPECT_NEAR(account.repeated, 301 * account.failures, 3);
  EXPECT_NEAR(account.restart, 100 * account.failures, 1e-9);
  EXPECT_NEAR(account.runtime_goodput(), 360000 / account.wall(), 1e-12);
}

/// An interval of twice the time between failures takes e^2 - 1 = 6.39 times that time.
TEST(Prediction, LongIntervalsCostMoreThanHalfOfThem) {
  Machine machine = read_machine("h100");
  Prediction run;
  run.nodes = 1;
  run.run_seconds = 72000;
  machine.reliability.node_mtbf_hours = 1;
  EXPECT_NEAR(expect_account(run, machine, {.interval = 7200})->wall(),
              10 * 3600 * (std::exp(2) - 1), 1e-6);
  EXPECT_FALSE(expect_account(run, machine, {.interval = 72000})->wall() < 100.0 * 72000);
}

}  // namespace
}  // namespace trireme::plan
