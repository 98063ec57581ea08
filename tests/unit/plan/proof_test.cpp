// SPDX-License-Identifier: Apache-2.0
//
// Tests record_programs and prove (plan/proof/call_record.hpp, plan/proof/proof.hpp): recorded runs
// are free of deadlock, some ranks stand for all, and every mistake made in a recorded program is
// found.
#include "trireme/plan/proof/proof.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/replica.hpp"

namespace trireme::plan {
namespace {

using testing::HasSubstr;

using Kind = ProgramCall::Kind;
using parallel::MeshGroup;

/// Three evaluated micro-batches, and a comparison of replicas.
constexpr train::RehearsedParts all_parts{.evaluation_rounds = 3, .compares_replicas = true};

struct Layout {
  std::string name;
  parallel::MeshShape shape;
  train::ReplicaOptions options;
  DeviceKind target = DeviceKind::cpu;
};

train::ReplicaOptions with_steps(train::ReplicaOptions options, int data, int accumulation) {
  options.accumulation = accumulation;
  options.global = options.micro * data * accumulation;
  return options;
}

/// Layouts of 64 ranks with every kind of communication.
std::vector<Layout> layouts_of_64_ranks() {
  std::vector<Layout> list;
  const auto add = [&](const char* name, const parallel::MeshShape& shape,
                       train::ReplicaOptions options, int accumulation) -> Layout& {
    return list.emplace_back(name, shape, with_steps(std::move(options), shape.data, accumulation));
  };
  add("batch norm over 4 ranks", {.data = 64, .batch_norm = 4}, test::small_resnet(), 2);
  add("sharded optimizer in tree order", {.data = 64}, test::small_resnet(), 1);
  list.back().options.shard = parallel::ShardKind::optimizer;
  list.back().options.deterministic = true;
  add("periodic", {.data = 64}, test::small_resnet(), 1).options.sync =
      parallel::SyncKind::periodic;
  add("delayed", {.data = 64}, test::small_resnet(), 1).options.sync = parallel::SyncKind::delayed;
  add("tensor and pipeline", {.data = 4, .tensor = 4, .pipeline = 4}, test::small_gpt(4), 6);
  list.back().options.sequence = true;
  list.back().options.noise_scale = list.back().options.tensor_norms = true;
  add("sharded parameters", {.data = 16, .tensor = 4}, test::small_gpt(2), 2);
  list.back().options.shard = parallel::ShardKind::parameters;
  list.back().target = DeviceKind::cuda;
  add("interleaved", {.data = 16, .pipeline = 4}, test::small_gpt(8), 8);
  list.back().options.pipeline_schedule = parallel::PipelineKind::interleaved;
  list.back().options.pipeline_chunks = 2;
  list.back().options.recompute = 1;
  list.back().options.shard = parallel::ShardKind::gradients;
  list.back().target = DeviceKind::cuda;
  add("LAMB and a weight average", {.data = 8, .tensor = 2, .pipeline = 4}, test::small_gpt(4), 4);
  list.back().options.optimizer.rule = &optim::rule("lamb");
  list.back().options.optimizer.ema = 0.9;
  list.back().options.shard = parallel::ShardKind::optimizer;
  list.back().options.reduce = DType::bfloat16;
  add("periodic with stages and a loss scale", {.data = 16, .pipeline = 4}, test::small_gpt(4), 2);
  list.back().options.sync = parallel::SyncKind::periodic;
  list.back().options.outer_momentum = 0.5;
  list.back().options.compute = DType::float16;
  list.back().options.loss_scale.emplace();
  add("delayed with stages", {.data = 32, .pipeline = 2}, test::small_gpt(4), 4);
  list.back().options.sync = parallel::SyncKind::delayed;
  list.back().options.shard = parallel::ShardKind::gradients;
  list.back().options.pipeline_schedule = parallel::PipelineKind::gpipe;
  return list;
}

TEST(Proof, FirstAndLastRanksStandForAll) {
  for (const Layout& layout : layouts_of_64_ranks()) {
    SCOPED_TRACE(layout.name);
    const RankPrograms places =
        record_programs(layout.options, layout.shape, layout.target, all_parts);
    const RankPrograms all =
        record_programs(layout.options, layout.shape, layout.target, all_parts, RecordedRanks::all);
    EXPECT_LT(places.recorded_ranks, 64);
    EXPECT_EQ(all.recorded_ranks, 64);
    for (int rank = 0; rank < 64; ++rank)
      EXPECT_TRUE(places.program(rank) == all.program(rank)) << "rank " << rank;
    const Proof proof = prove(all);
    EXPECT_EQ(prove(places), proof);
    EXPECT_TRUE(proof.holds()) << proof.findings[0].text;
    EXPECT_GT(proof.calls, 64);
    EXPECT_FALSE(proof.groups.empty());
    EXPECT_EQ(proof.messages > 0, layout.shape.pipeline > 1);
  }
}

/// A recorded run of 16 ranks; rank 6 is data rank 1 of stage 1.
class Mistake : public testing::Test {
 protected:
  static constexpr int rank = 6, stage = 1;
  static constexpr parallel::MeshShape shape{.data = 2, .tensor = 2, .pipeline = 4};

  Mistake() : programs(recorded_run()) {}

  static const RankPrograms& recorded_run() {
    static const RankPrograms result = [] {
      train::ReplicaOptions options = with_steps(test::small_gpt(8), 2, 6);
      options.bucket_bytes = 1024;  // several buckets in each stage
      return record_programs(options, shape, DeviceKind::cpu, all_parts);
    }();
    return result;
  }

  /// Returns the program of a rank, which is its own from now on.
  Program& own(int of) {
    programs.programs.push_back(Program(programs.program(of)));
    programs.program_of_rank[static_cast<std::size_t>(of)] =
        static_cast<std::int32_t>(programs.programs.size()) - 1;
    return programs.programs.back();
  }

  using Test = std::function<bool(const ProgramCall&)>;
  static std::size_t find(const Program& program, const Test& test, std::size_t from = 0) {
    const auto at =
        std::find_if(program.begin() + static_cast<std::ptrdiff_t>(from), program.end(), test);
    EXPECT_NE(at, program.end());
    return static_cast<std::size_t>(at - program.begin());
  }
  static Test is(Kind kind) {
    return [kind](const ProgramCall& call) { return call.kind == kind; };
  }
  static Test is(Kind kind, MeshGroup group) {
    return [=](const ProgramCall& call) { return call.kind == kind && call.group == group; };
  }
  static Test has_label(const RankPrograms& in, std::string_view label) {
    return
        [&in, label](const ProgramCall& call) { return in.purposes[call.purpose].label == label; };
  }

  /// Removes a request and the waits for it.
  static void remove_request(Program& program, std::size_t at) {
    const std::int32_t request = program[at].request;
    std::erase_if(program,
                  [&](const ProgramCall& call) { return call.request == request && request != 0; });
  }

  /// Moves the first send of a stage behind the wait for the gradient that it leads to. Other sends
  /// of the direction, and waits for them, keep their order behind it.
  void wait_before_send(Program& program) const {
    const std::size_t send = find(program, is(Kind::send));
    const std::size_t receive =
        find(program, has_label(programs, "trireme/train/receive_gradient"), send);
    const std::int32_t sent = program[send].request, request = program[receive].request;
    const std::size_t wait = find(
        program,
        [&](const ProgramCall& call) { return call.kind == Kind::wait && call.request == request; },
        receive);
    const auto at = [&](std::size_t i) { return program.begin() + static_cast<std::ptrdiff_t>(i); };
    std::stable_partition(at(send), at(wait + 1), [&](const ProgramCall& call) {
      const bool is_wait_for_one =
          call.kind == Kind::wait && call.request < request && call.request >= sent;
      return call.kind != Kind::send && !is_wait_for_one;
    });
  }

  /// Expects a finding that contains all of these words.
  void expect_finding(const std::vector<std::string>& words) const {
    const Proof proof = prove(programs);
    const bool found = std::any_of(
        proof.findings.begin(), proof.findings.end(), [&](const Proof::Finding& finding) {
          return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
            return finding.text.find(word) != std::string::npos;
          });
        });
    std::string all;
    for (const Proof::Finding& finding : proof.findings) all += finding.text + "\n";
    EXPECT_TRUE(found) << testing::PrintToString(words) << " are not all in one of:\n" << all;
  }

  /// Returns "rank 6 (stage 1, tensor 0, data 1): send of ..., call 4 of step 1".
  std::string text_of(int of, const ProgramCall& call) const {
    return describe_rank(shape, of) + ": " + describe_call(programs, of, call);
  }

  RankPrograms programs;
};

TEST_F(Mistake, NoneIsFoundInTheRecord) {
  const Proof proof = prove(programs);
  EXPECT_TRUE(proof.holds()) << proof.findings[0].text;
  // Stage and tensor rank make a difference, the data rank does not.
  EXPECT_EQ(proof.classes, 8);
}

TEST_F(Mistake, ADroppedReceive) {
  Program& program = own(rank);
  const std::size_t at = find(program, is(Kind::receive));
  const ProgramCall next = program[find(program, is(Kind::receive), at + 1)];
  remove_request(program, at);
  expect_finding({"rank 2 (stage 0, tensor 0, data 1): send", "micro-batch 0", "does not match",
                  text_of(rank, next)});
}

TEST_F(Mistake, TheLastReceiveOfAStep) {
  Program& program = own(rank);
  std::size_t last = 0;
  for (std::size_t i = 0; i < program.size(); ++i)
    if (program[i].kind == Kind::receive) last = i;
  remove_request(program, last);
  expect_finding({"to rank 6", "of step 3", "nobody receives it"});
}

TEST_F(Mistake, TwoSwappedCollectives) {
  Program& program = own(rank);
  const auto bucket = has_label(programs, "trireme/parallel/reduce_bucket");
  const std::size_t a = find(program, bucket), b = find(program, bucket, a + 1);
  const ProgramCall first = program[b];
  std::swap(program[a], program[b]);
  expect_finding({text_of(rank, first), "does not match", "rank 4 (stage 1"});
}

TEST_F(Mistake, AWrongPeer) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::send))];
  call.peer = 3;
  expect_finding({text_of(rank, call), "to rank 14", "nobody receives it"});
  expect_finding({"rank 10 (stage 2, tensor 0, data 1): receive", "from rank 6"});
}

TEST_F(Mistake, AWrongSize) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::send))];
  call.bytes -= 4;
  expect_finding({text_of(rank, call), "does not match", "rank 10 (stage 2"});
}

TEST_F(Mistake, WrongSizesOfTheRanksParts) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::all_gather, MeshGroup::model))];
  call.sizes += 1;
  expect_finding({text_of(rank, call), "does not match"});
}

TEST_F(Mistake, AWrongTag) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::receive))];
  call.tag += 100;
  expect_finding({text_of(rank, call), "nobody sends it"});
}

TEST_F(Mistake, AWrongGroup) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::all_reduce, MeshGroup::tensor))];
  call.group = MeshGroup::data;
  expect_finding({text_of(rank, call)});
}

TEST_F(Mistake, AWrongRoot) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::blocking_broadcast, MeshGroup::pipeline))];
  call.peer = 0;
  expect_finding({text_of(rank, call), "by rank 2", "does not match", "by rank 14"});
}

TEST_F(Mistake, ACollectiveThatIsLeftOut) {
  Program& program = own(rank);
  std::size_t last = 0;
  for (std::size_t i = 0; i < program.size(); ++i)
    if (program[i].kind == Kind::all_reduce && program[i].group == MeshGroup::world) last = i;
  remove_request(program, last);
  expect_finding({"rank 6 (stage 1, tensor 0, data 1) does not take part in rank", "step_status",
                  "of step 3"});
}

TEST_F(Mistake, ASendTooMany) {
  Program& program = own(rank);
  const std::size_t at = find(program, is(Kind::quiesce));
  ProgramCall call = program[find(program, is(Kind::send))];
  call.request = 1 << 20;
  call.part = program[at].part;
  program.insert(program.begin() + static_cast<std::ptrdiff_t>(at), call);
  expect_finding({"rank 6 (stage 1, tensor 0, data 1): send", "does not match", "sends"});
}

TEST_F(Mistake, TheOrderOfStagesReversed) {
  programs.program_of_rank[6] = programs.program_of_rank[10];
  programs.program_of_rank[10] = recorded_run().program_of_rank[6];
  expect_finding({"rank 6 (stage 1, tensor 0, data 1): ", "the group has no such other rank"});
}

TEST_F(Mistake, AWaitForNoRequest) {
  Program& program = own(rank);
  ProgramCall& call = program[find(program, is(Kind::wait))];
  call.request = 1 << 20;
  expect_finding({text_of(rank, call), "was not submitted before"});
}

/// Rank 6 sends the output of its first micro-batch only after it has waited for its gradient.
TEST_F(Mistake, AWaitBeforeTheSendThatItNeeds) {
  wait_before_send(own(rank));
  expect_finding({"2 ranks wait for each other in a cycle", "\n  rank 6 (stage 1", "\n  rank 10 (",
                  "for the receive", "waits for rank 6", "waits for rank 10"});
}

/// The ranks of a class wait as they would one by one.
TEST_F(Mistake, ClassesStandForTheirRanks) {
  const auto one_by_one = [](RankPrograms all) {
    for (int of = 0; of < shape.ranks(); ++of) {
      all.programs.push_back(Program(all.program(of)));
      all.program_of_rank[static_cast<std::size_t>(of)] =
          static_cast<std::int32_t>(all.programs.size()) - 1;
    }
    Proof proof = prove(all);
    EXPECT_EQ(proof.classes, shape.ranks());
    return proof;
  };
  const auto expect_equal = [&] {
    const Proof classes = prove(programs), ranks = one_by_one(programs);
    EXPECT_LT(classes.classes, shape.ranks());
    EXPECT_EQ(classes.findings, ranks.findings);
    EXPECT_EQ(classes.messages, ranks.messages);
    EXPECT_EQ(classes.groups, ranks.groups);
    return classes.holds();
  };
  EXPECT_TRUE(expect_equal());
  // All ranks of stage 1 make the mistake.
  wait_before_send(programs.programs[static_cast<std::size_t>(programs.program_of_rank[rank])]);
  EXPECT_FALSE(expect_equal());
}

/// Programs made by hand on 2 x 2 ranks.
class Cycle : public testing::Test {
 protected:
  Cycle() {
    programs.shape = {.data = 2, .tensor = 2};
    programs.parts = {"step 1"};
    programs.purposes.emplace_back();
  }

  struct Call {
    Kind kind;
    MeshGroup group = MeshGroup::world;
    std::int32_t request = 0, peer = -1;
  };
  void add(std::vector<int> ranks, const std::vector<Call>& calls) {
    Program program;
    for (const Call& from : calls) {
      ProgramCall call;
      call.kind = from.kind;
      call.group = from.group;
      call.request = from.request;
      call.peer = from.peer;
      call.bytes = 8;
      call.number = static_cast<std::int32_t>(program.size()) + 1;
      program.push_back(call);
    }
    programs.program_of_rank.resize(4);
    for (const int rank : ranks)
      programs.program_of_rank[static_cast<std::size_t>(rank)] =
          static_cast<std::int32_t>(programs.programs.size());
    programs.programs.push_back(program);
  }

  /// Returns the text of the only finding; "" if there is none.
  std::string finding() const {
    const Proof proof = prove(programs);
    EXPECT_LE(proof.findings.size(), 1);
    return proof.holds() ? "" : proof.findings[0].text;
  }

  RankPrograms programs;
};

TEST_F(Cycle, TwoGroupsInOppositeOrders) {
  const Call data{Kind::all_reduce, MeshGroup::data, 1}, wait_data{Kind::wait, {}, 1},
      tensor{Kind::all_reduce, MeshGroup::tensor, 2}, wait_tensor{Kind::wait, {}, 2};
  add({0, 3}, {data, wait_data, tensor, wait_tensor});
  add({1, 2}, {tensor, wait_tensor, data, wait_data});
  const std::string text = finding();
  EXPECT_EQ(text,
            "deadlock: 4 ranks wait for each other in a cycle\n"
            "  rank 0 (stage 0, tensor 0, data 0): wait, call 2 of step 1 for the all_reduce of 8 "
            "bytes over group data (2 ranks), call 1 of step 1, waits for rank 2\n"
            "  rank 2 (stage 0, tensor 0, data 1): wait, call 2 of step 1 for the all_reduce of 8 "
            "bytes over group tensor (2 ranks), call 1 of step 1, waits for rank 3\n"
            "  rank 3 (stage 0, tensor 1, data 1): wait, call 2 of step 1 for the all_reduce of 8 "
            "bytes over group data (2 ranks), call 1 of step 1, waits for rank 1\n"
            "  rank 1 (stage 0, tensor 1, data 0): wait, call 2 of step 1 for the all_reduce of 8 "
            "bytes over group tensor (2 ranks), call 1 of step 1, waits for rank 0");
}

TEST_F(Cycle, NoneIfBothAreSubmittedBeforeTheFirstWait) {
  const Call data{Kind::all_reduce, MeshGroup::data, 1}, wait_data{Kind::wait, {}, 1},
      tensor{Kind::all_reduce, MeshGroup::tensor, 2}, wait_tensor{Kind::wait, {}, 2};
  add({0, 3}, {data, tensor, wait_data, wait_tensor});
  add({1, 2}, {tensor, data, wait_tensor, wait_data});
  EXPECT_EQ(finding(), "");
}

TEST_F(Cycle, ARankInABlockingCallDoesNotPoll) {
  const Call sum{Kind::all_reduce, MeshGroup::world, 1}, wait{Kind::wait, {}, 1},
      barrier{Kind::blocking_barrier};
  add({0}, {sum, barrier, wait});
  add({1, 2, 3}, {sum, wait, barrier});
  const std::string text = finding();
  EXPECT_THAT(text, HasSubstr("waits for rank 0, which makes no progress in its blocking calls"));
  EXPECT_THAT(text,
              HasSubstr("rank 0 (stage 0, tensor 0, data 0): blocking barrier over group world"));
}

/// Rank 0 may leave its wait for the tensor group before rank 2 has come to the sum of both, so
/// rank 2 cannot rely on it.
TEST_F(Cycle, AnotherWaitBeforeABlockingCallMayEndTooEarly) {
  const Call sum{Kind::all_reduce, MeshGroup::data, 1},
      other{Kind::all_gather, MeshGroup::tensor, 2}, wait_other{Kind::wait, {}, 2},
      wait{Kind::wait, {}, 1}, barrier{Kind::blocking_barrier};
  add({1, 3}, {other, wait_other, barrier});
  add({2}, {sum, other, wait_other, wait, barrier});
  add({0}, {sum, other, wait_other, barrier, wait});
  EXPECT_THAT(finding(),
              HasSubstr("waits for rank 0, which makes no progress in its blocking calls"));
  programs.programs.pop_back();
  add({0}, {sum, other, wait_other, wait, barrier});
  EXPECT_EQ(finding(), "");
}

/// A group starts 8 sums before one of them ends, so a wait for the ninth ends the first too.
TEST_F(Cycle, AWaitForTheNinthSumDrivesTheFirst) {
  const Call barrier{Kind::blocking_barrier}, quiesce{Kind::quiesce};
  std::vector<Call> calls;
  for (std::int32_t request = 1; request <= 9; ++request)
    calls.push_back({Kind::all_reduce, MeshGroup::world, request});
  std::vector<Call> calls_and_waits(calls), passes(calls);
  calls_and_waits.insert(calls_and_waits.end(), {{Kind::wait, {}, 9}, barrier, quiesce});
  passes.insert(passes.end(), {barrier, quiesce});
  add({0, 1, 2, 3}, calls_and_waits);
  EXPECT_EQ(finding(), "");
  add({0}, passes);
  EXPECT_NE(finding(), "");
}

TEST_F(Cycle, BothReceiveBeforeTheySend) {
  programs.shape = {.tensor = 2, .pipeline = 2};
  const auto program = [](std::int32_t peer) {
    return std::vector<Call>{{Kind::receive, MeshGroup::pipeline, 1, peer},
                             {Kind::wait, {}, 1},
                             {Kind::send, MeshGroup::pipeline, 2, peer},
                             {Kind::quiesce}};
  };
  add({0, 1}, program(1));
  add({2, 3}, program(0));
  EXPECT_EQ(finding().substr(0, 50), "deadlock: 2 ranks wait for each other in a cycle\n ");
}

/// Nothing is buffered: both wait for their sends before they receive.
TEST_F(Cycle, BothWaitForTheirSends) {
  programs.shape = {.tensor = 2, .pipeline = 2};
  const auto program = [](std::int32_t peer, bool waits_first) {
    std::vector<Call> calls{{Kind::send, MeshGroup::pipeline, 1, peer},
                            {Kind::wait, {}, 1},
                            {Kind::receive, MeshGroup::pipeline, 2, peer},
                            {Kind::quiesce}};
    if (!waits_first) std::swap(calls[1], calls[2]);
    return calls;
  };
  add({0, 1}, program(1, true));
  add({2, 3}, program(0, true));
  EXPECT_NE(finding(), "");
  programs.programs.clear();
  add({0, 1}, program(1, true));
  add({2, 3}, program(0, false));
  EXPECT_EQ(finding(), "");
}

TEST_F(Cycle, MessagesOfNcclMatchInTheirOrder) {
  programs.shape = {.tensor = 2, .pipeline = 2};
  add({0, 1}, {{Kind::send, MeshGroup::pipeline, 1, 1},
               {Kind::send, MeshGroup::pipeline, 2, 1},
               {Kind::quiesce}});
  add({2, 3}, {{Kind::receive, MeshGroup::pipeline, 1, 0},
               {Kind::receive, MeshGroup::pipeline, 2, 0},
               {Kind::quiesce}});
  programs.programs[0][0].tag = programs.programs[1][1].tag = 1;
  EXPECT_EQ(finding(), "");
  programs.messages_in_order = true;
  EXPECT_THAT(prove(programs).findings.at(0).text,
              HasSubstr("tag 1, call 1 of step 1 does not match"));
}

}  // namespace
}  // namespace trireme::plan
