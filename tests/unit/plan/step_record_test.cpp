// Tests record_step (plan/step_record.hpp): the record holds the step that a run executes.
#include "trireme/plan/step_record.hpp"

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/replica.hpp"

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
  fixture.replica.post_status(0, 0);
  const ops::Counters before = fixture.replica.context().counters();
  fixture.step(0.01);
  fixture.replica.post_status(0, 0);
  const ops::Counters after = fixture.replica.context().counters();
  EXPECT_EQ(record.flops(), after.flops - before.flops);
  EXPECT_EQ(record.bytes(), after.bytes - before.bytes);
  EXPECT_EQ(record.requests, 0);  // one rank sends nothing
}

TEST(StepRecord, KnowsTheShapeOfEveryProduct) {
  const StepRecord record = record_step(test::small_resnet(18, 8), {}, 0, DeviceKind::cpu);
  for (const ops::OpCall& op : record.ops) {
    if (op.flops == 0) continue;
    EXPECT_EQ(op.flops, 2.0 * op.products * op.m * op.n * op.k) << op.name;
  }
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

}  // namespace
}  // namespace trireme::plan
