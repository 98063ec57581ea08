// SPDX-License-Identifier: Apache-2.0
//
// The bytes that plan::record_step() counts for a rank are those that the engine sends in a step,
// for every kind of sum, sharding and layout. Groups have the ranks that plan::prove() computes.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/mpi.hpp"
#include "support/replica.hpp"
#include "trireme/plan/proof/call_record.hpp"
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
    const StepRecord record = record_step(item.options, item.shape, world().rank(), DeviceKind::cpu,
                                          train::RehearsedMicroBatches::all);
    double expected = 0;
    for (const StepRecord::Call& call : record.calls) expected += call.sent_bytes;
    test::ReplicaFixture fixture(item.options, 1, parallel::Mesh(item.shape, world()));
    double before = 0;
    for (int step = 0; step < 2; ++step) {
      before = fixture.engine.bytes_sent();
      fixture.step(0.01);
      fixture.replica.post_status(0);
      fixture.replica.status_exchange().wait();
      fixture.engine.quiesce();
      world().barrier();
    }
    EXPECT_EQ(expected, fixture.engine.bytes_sent() - before);
    EXPECT_GT(expected, 0);
  }
}

TEST(Groups, HaveTheRanksOfTheirSplit) {
  const int ranks = world().size(), half = ranks % 2 == 0 ? 2 : 1;
  for (const parallel::MeshShape& shape :
       {parallel::MeshShape{.data = ranks, .batch_norm = half},
        parallel::MeshShape{.data = ranks / half, .tensor = half},
        parallel::MeshShape{.data = ranks / half, .pipeline = half},
        parallel::MeshShape{.tensor = half, .pipeline = ranks / half}}) {
    const parallel::Mesh mesh(shape, world());
    using parallel::MeshGroup;
    for (const auto& [kind, group] :
         {std::pair{MeshGroup::world, mesh.world}, std::pair{MeshGroup::data, mesh.data},
          std::pair{MeshGroup::tensor, mesh.tensor}, std::pair{MeshGroup::pipeline, mesh.pipeline},
          std::pair{MeshGroup::model, mesh.model}, std::pair{MeshGroup::tied, mesh.tied_group},
          std::pair{MeshGroup::delayed_data, mesh.delayed_data},
          std::pair{MeshGroup::batch_norm, mesh.batch_norm}}) {
      const std::vector<int> expected = ranks_of_group(shape, world().rank(), kind);
      std::vector<int> found(group.size() == 1 ? 0 : static_cast<std::size_t>(group.size()));
      const int mine = world().rank();
      if (!found.empty())
        group.all_gather(std::as_bytes(std::span(&mine, 1)),
                         std::as_writable_bytes(std::span(found)));
      EXPECT_EQ(found, expected) << parallel::split_of(shape, mine, kind).name;
    }
  }
}

}  // namespace
}  // namespace trireme::plan
