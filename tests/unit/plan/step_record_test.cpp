// SPDX-License-Identifier: Apache-2.0
//
// Tests record_step (plan/step_record.hpp): the record holds the step that a run executes.
#include "trireme/plan/step_record.hpp"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/replica.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/timeline.hpp"

namespace trireme::plan {
namespace {

using Kind = comm::Engine::Call::Kind;

TEST(StepRecord, HoldsTheWorkThatARunCounts) {
  train::ReplicaOptions options = test::small_resnet(18, 8);
  options.accumulation = 3;
  options.global = 3 * options.micro;
  const StepRecord record = record_step(options, {}, 0, DeviceKind::cpu);
  test::ReplicaFixture fixture(options);
  fixture.step(0.01);
  fixture.replica.post_status(0);
  const ops::Counters before = fixture.replica.context().counters();
  fixture.step(0.01);
  fixture.replica.post_status(0);
  const ops::Counters after = fixture.replica.context().counters();
  EXPECT_EQ(record.flops(), after.flops - before.flops);
  EXPECT_EQ(record.bytes(), after.bytes - before.bytes);
  EXPECT_EQ(record.requests, 0);  // one rank sends nothing
}

TEST(StepRecord, KnowsTheShapeOfEveryProduct) {
  const StepRecord record = record_step(test::small_resnet(18, 8), {}, 0, DeviceKind::cpu);
  for (const ops::OpCall& op : record.ops) {
    if (op.flops == 0) continue;
    EXPECT_EQ(op.flops, 2.0 * op.products * op.m * op.n * op.k) << op.op.name;
  }
}

/// Efficiencies of a machine are found by the names of the ops.
TEST(StepRecord, OpsWithProductsHaveNamesOfAClass) {
  std::set<std::string> names;
  for (const train::ReplicaOptions& options : {test::small_resnet(), test::small_gpt()})
    for (const ops::OpCall& op : record_step(options, {}, 0, DeviceKind::cpu).ops)
      if (op.flops > 0) names.emplace(op.op.name);
  const std::set<std::string> expected{"attention_backward",        "attention_forward",
                                       "convolution_backward_data", "convolution_backward_weight",
                                       "convolution_forward",       "linear_backward_data",
                                       "linear_backward_weight",    "linear_forward"};
  EXPECT_EQ(names, expected);
}

TEST(StepRecord, WaitsForEveryRequestInItsStepOrTheNext) {
  train::ReplicaOptions options = test::small_resnet(18, 8);
  options.shard = parallel::ShardKind::optimizer;
  options.global = 4 * options.micro;
  const StepRecord record = record_step(options, {.data = 4}, 1, DeviceKind::cpu);
  EXPECT_GT(record.requests, 0);
  std::set<std::int64_t> submitted, waited;
  for (const StepRecord::Call& call : record.calls) {
    if (call.kind == Kind::wait) waited.insert(call.number);
    if (call.kind == Kind::wait || call.kind == Kind::quiesce) continue;
    EXPECT_TRUE(submitted.insert(call.number).second) << call.number;
  }
  ASSERT_EQ(submitted.size(), record.requests);
  for (const std::int64_t number : submitted)
    EXPECT_TRUE(waited.contains(number) || waited.contains(number - record.requests)) << number;
  // The gathers of updated weights that the step before has started.
  EXPECT_LT(*waited.begin(), 0);
  EXPECT_GE(*waited.begin(), -record.requests);
}

/// An event of a step with what it names; requests and micro-batches have their numbers in the
/// step.
struct NamedEvent {
  StepRecord::Event::Kind kind;
  std::int64_t number = 0;  // micro-batch or request
  std::string name;
  double size = 0;
  bool operator==(const NamedEvent&) const = default;
};

/// Lists the events of a step with all of its periods.
std::vector<NamedEvent> events_of(const StepRecord& record) {
  using Event = StepRecord::Event;
  std::vector<NamedEvent> events;
  std::int64_t requests = 0;
  const auto add = [&](std::size_t i, std::int64_t round) {
    const Event& event = record.events[i];
    NamedEvent named{.kind = event.kind, .name = ""};
    if (event.kind == Event::Kind::op) {
      named.name = record.ops[event.index].op.name;
      named.size = record.ops[event.index].flops;
    } else if (event.kind == Event::Kind::call) {
      const StepRecord::Call& call = record.calls[event.index];
      const bool is_wait = call.kind == Kind::wait || call.kind == Kind::quiesce;
      named.number = call.kind == Kind::wait ? record.number_in_round(call.number, round)
                     : is_wait               ? 0
                                             : requests++;
      named.name = call.group.name() + std::string(call.purpose.label);
      named.size = static_cast<double>(call.bytes);
    } else if (event.kind != Event::Kind::update) {
      named.number = event.index + round * record.repeat.micro_batches;
    }
    events.push_back(std::move(named));
  };
  const StepRecord::Repeat& repeat = record.repeat;
  for (std::size_t i = 0; i < repeat.end; ++i) add(i, 0);
  for (std::int64_t round = 1; round < repeat.times; ++round)
    for (std::size_t i = repeat.begin; i < repeat.end; ++i) add(i, round);
  for (std::size_t i = repeat.end; i < record.events.size(); ++i) add(i, repeat.times - 1);
  EXPECT_EQ(requests, record.requests);
  return events;
}

/// A layout with many micro-batches.
struct LongStep {
  const char* name;
  parallel::MeshShape shape;
  train::ReplicaOptions options;
};

std::vector<LongStep> long_steps() {
  using parallel::ShardKind;
  train::ReplicaOptions gpt = test::small_gpt(4);
  gpt.accumulation = 24;
  gpt.graphs = false;
  std::vector<LongStep> steps{{"one rank", {}, gpt}};
  const auto add = [&](const char* name, const parallel::MeshShape& shape) -> auto& {
    return steps.emplace_back(LongStep{name, shape, gpt}).options;
  };
  add("data", {.data = 4});
  add("optimizer", {.data = 4, .pipeline = 2}).shard = ShardKind::optimizer;
  add("gradients", {.data = 4, .pipeline = 2}).shard = ShardKind::gradients;
  add("parameters", {.data = 4, .pipeline = 3}).shard = ShardKind::parameters;
  add("sequence", {.data = 2, .tensor = 2, .pipeline = 4}).sequence = true;
  add("delayed", {.data = 2, .pipeline = 2}).sync = parallel::SyncKind::delayed;
  auto& chunks = add("chunks", {.data = 2, .pipeline = 2});
  chunks.pipeline_schedule = parallel::PipelineKind::interleaved;
  chunks.pipeline_chunks = 2;
  auto& offloaded = add("offloaded", {.pipeline = 2});
  offloaded.offload.activations = true;
  offloaded.recompute = 2;
  add("tree", {.data = 2, .pipeline = 2}).deterministic = true;
  for (LongStep& step : steps)
    step.options.global = step.options.accumulation * step.options.micro * step.shape.data;
  return steps;
}

TEST(StepRecord, ARepeatedPeriodStandsForAllMicroBatches) {
  const Machine machine = read_machine("h100");
  int shortened = 0;
  for (const LongStep& step : long_steps()) {
    SCOPED_TRACE(step.name);
    std::vector<StepRecord> part, all;
    std::vector<const StepRecord*> of_part, of_all;
    for (int stage = 0; stage < step.shape.pipeline; ++stage) {
      const int rank = parallel::rank_of(step.shape, {stage, 0, 0});
      part.push_back(record_step(step.options, step.shape, rank, DeviceKind::cuda));
      all.push_back(record_step(step.options, step.shape, rank, DeviceKind::cuda,
                                train::RehearsedMicroBatches::all));
      // 1. The same events, requests, work and traffic.
      EXPECT_EQ(all.back().repeat.times, 1);
      EXPECT_EQ(events_of(part.back()), events_of(all.back())) << "stage " << stage;
      EXPECT_EQ(part.back().requests, all.back().requests);
      EXPECT_EQ(part.back().flops(), all.back().flops());
      EXPECT_EQ(part.back().bytes(), all.back().bytes());
      shortened += part.back().repeat.times > 1;
      // 2. The same memory: an observer receives all micro-batches.
      const train::StepObserver observer{.op = [](const ops::OpCall&) {}};
      EXPECT_EQ(
          train::Replica::measure(step.options, step.shape, rank, DeviceKind::cuda),
          train::Replica::measure(step.options, step.shape, rank, DeviceKind::cuda, observer));
    }
    // 3. The same time.
    for (int stage = 0; stage < step.shape.pipeline; ++stage) {
      of_part.push_back(&part[static_cast<std::size_t>(stage)]);
      of_all.push_back(&all[static_cast<std::size_t>(stage)]);
    }
    const StepCosts costs = costs_on(machine, step.shape, false);
    const double seconds = simulate(of_all, costs).seconds;
    EXPECT_NEAR(simulate(of_part, costs).seconds, seconds, 1e-12 * seconds);
  }
  EXPECT_GT(shortened, 10);
}

}  // namespace
}  // namespace trireme::plan
