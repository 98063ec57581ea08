// The bytes that plan::record_step() counts for a rank are those that the engine sends in a step,
// for every kind of sum, sharding and layout.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/mpi.hpp"
#include "support/replica.hpp"
#include "trireme/plan/step_record.hpp"

namespace trireme::plan {
namespace {

const comm::Communicator& world() { return test_environment().world(); }

struct Case {
  std::string name;
  parallel::MeshShape shape;
  train::ReplicaOptions options;
};

/// Returns `options` with samples for `accumulation` micro-batches on each data rank.
train::ReplicaOptions with_steps(train::ReplicaOptions options, int data, int accumulation) {
  options.accumulation = accumulation;
  options.global = options.micro * data * accumulation;
  return options;
}

std::vector<Case> cases() {
  const int ranks = world().size();
  const parallel::MeshShape all{.data = ranks};
  const train::ReplicaOptions plain = with_steps(test::small_resnet(), ranks, 2);
  std::vector<Case> list{{"library", all, plain}};
  list.push_back({"tree", all, plain});
  list.back().options.deterministic = true;
  list.push_back({"bfloat16", all, plain});
  list.back().options.reduce = DType::bfloat16;
  for (const auto kind : {parallel::ShardKind::optimizer, parallel::ShardKind::gradients,
                          parallel::ShardKind::parameters}) {
    list.push_back({"shards", all, plain});
    list.back().options.shard = kind;
    list.push_back({"shards, tree", all, plain});
    list.back().options.shard = kind;
    list.back().options.deterministic = true;
  }
  if (ranks % 2 != 0) return list;
  const int data = ranks / 2;
  const train::ReplicaOptions gpt = with_steps(test::small_gpt(4), data, 2);
  list.push_back({"tensor", {.data = data, .tensor = 2}, gpt});
  list.push_back({"tensor, sequence", {.data = data, .tensor = 2}, gpt});
  list.back().options.sequence = true;
  list.push_back({"pipeline", {.data = data, .pipeline = 2}, gpt});
  list.push_back({"recomputed pipeline", {.data = data, .pipeline = 2}, gpt});
  list.back().options.recompute = 1;
  return list;
}

TEST(Traffic, IsRecordedToTheByte) {
  for (const Case& item : cases()) {
    SCOPED_TRACE(item.name);
    const StepRecord record =
        record_step(item.options, item.shape, world().rank(), DeviceKind::cpu);
    double expected = 0;
    for (const StepRecord::Call& call : record.calls)
      // The fixture has no exchange of the status.
      if (call.purpose.label != "trireme/train/step_status") expected += call.sent_bytes;
    test::ReplicaFixture fixture(item.options, 1, parallel::Mesh(item.shape, world()));
    double before = 0;
    for (int step = 0; step < 2; ++step) {
      before = fixture.engine.bytes_sent();
      fixture.step(0.01);
      fixture.engine.quiesce();
      world().barrier();
    }
    EXPECT_EQ(expected, fixture.engine.bytes_sent() - before);
    EXPECT_GT(expected, 0);
  }
}

}  // namespace
}  // namespace trireme::plan
