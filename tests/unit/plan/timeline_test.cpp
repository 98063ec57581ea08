// SPDX-License-Identifier: Apache-2.0
//
// Tests simulate (plan/timeline.hpp) on records made by hand, whose times are known.
#include "trireme/plan/timeline.hpp"

#include <gtest/gtest.h>

#include "trireme/base/error.hpp"

namespace trireme::plan {
namespace {

using Kind = comm::Engine::Call::Kind;
using Event = StepRecord::Event;

/// Builds a record. Ops take as many seconds as they have FLOPs, requests as many as they have
/// bytes.
class Step {
 public:
  Step& forward(int micro_batch) { return add(Event::Kind::forward, micro_batch); }
  Step& backward(int micro_batch) { return add(Event::Kind::backward, micro_batch); }
  Step& update() { return add(Event::Kind::update, 0); }
  Step& op(double seconds) {
    record.ops.push_back({{.flops = seconds}, {}});
    record.counts.push_back(1);
    return add(Event::Kind::op, record.ops.size() - 1);
  }
  Step& submit(Kind kind, int seconds, const char* group, int size = 4, int peer = 0) {
    StepRecord::Call call{{.kind = kind,
                           .group = comm::Communicator::meta(0, size, group),
                           .purpose = "a request",
                           .bytes = seconds,
                           .peer = peer}};
    call.number = record.requests++;
    record.calls.push_back(call);
    return add(Event::Kind::call, record.calls.size() - 1);
  }
  Step& wait(std::int64_t number) {
    StepRecord::Call call{{.kind = Kind::wait}};
    call.number = number;
    record.calls.push_back(call);
    return add(Event::Kind::call, record.calls.size() - 1);
  }

  StepRecord record;

 private:
  Step& add(Event::Kind kind, std::size_t index) {
    record.events.push_back({kind, static_cast<std::uint32_t>(index)});
    return *this;
  }
};

Timeline simulated(const std::vector<StepRecord>& stages, bool overlaps = true) {
  std::vector<const StepRecord*> records;
  for (const StepRecord& stage : stages) records.push_back(&stage);
  return simulate(
      records, {.op_seconds = [](const ops::OpCall& op) { return op.flops; },
                .request_seconds =
                    [](const comm::Engine::Call& call) { return static_cast<double>(call.bytes); },
                // Stage 3 is on another node.
                .leaves_node = [](const comm::Engine::Call& call) { return call.peer == 3; },
                .overlaps = overlaps});
}

/// A sum of 5 s that starts after the first of two blocks of backward, 3 s each.
StepRecord overlapped_sum() {
  Step step;
  step.forward(0).op(2).backward(0).op(3).submit(Kind::all_reduce, 5, "data").op(3);
  step.update().wait(0).op(1);
  return step.record;
}

TEST(Timeline, ASumRunsBesideOps) {
  const Timeline timeline = simulated({overlapped_sum()});
  EXPECT_DOUBLE_EQ(timeline.seconds, 2 + 3 + 5 + 1);
  EXPECT_DOUBLE_EQ(timeline.stages[0].forward, 2);
  EXPECT_DOUBLE_EQ(timeline.stages[0].backward, 6);
  EXPECT_DOUBLE_EQ(timeline.stages[0].update, 1);
  EXPECT_DOUBLE_EQ(timeline.stages[0].waiting.at("data"), 2);
}

TEST(Timeline, WithoutOverlapASumRunsInItsWait) {
  const Timeline timeline = simulated({overlapped_sum()}, false);
  EXPECT_DOUBLE_EQ(timeline.seconds, 2 + 6 + 5 + 1);
  EXPECT_DOUBLE_EQ(timeline.stages[0].waiting.at("data"), 5);
}

TEST(Timeline, WithoutOverlapALaterWaitRunsTheEarlierSumsFirst) {
  Step step;
  step.forward(0).submit(Kind::reduce_scatter, 5, "data").submit(Kind::all_gather, 4, "data");
  step.wait(1).op(1).wait(0);
  const Timeline timeline = simulated({step.record}, false);
  EXPECT_DOUBLE_EQ(timeline.seconds, 5 + 4 + 1);
  EXPECT_DOUBLE_EQ(timeline.stages[0].waiting.at("data"), 9);
}

TEST(Timeline, DelayedSumsThatTakeLongerThanAStepDecide) {
  Step step;
  step.forward(0).op(1).wait(-1).update().submit(Kind::all_reduce, 4, "delayed data");
  EXPECT_DOUBLE_EQ(simulated({step.record}).seconds, 4);
}

TEST(Timeline, SumsOfOneGroupRunInOrderThoseOfTwoBesideEachOther) {
  Step one;
  one.forward(0).submit(Kind::all_reduce, 5, "data").submit(Kind::all_gather, 4, "data");
  one.wait(1);
  EXPECT_DOUBLE_EQ(simulated({one.record}).seconds, 9);
  Step two;
  two.forward(0).submit(Kind::all_reduce, 5, "data").submit(Kind::all_gather, 4, "tensor");
  two.wait(1).wait(0);
  EXPECT_DOUBLE_EQ(simulated({two.record}).seconds, 5);
}

TEST(Timeline, AGatherOfTheStepBeforeIsWaitedForInTheNext) {
  // The gather of 6 s starts at the end of a step, and is waited for after 2 s of the next one.
  Step step;
  step.forward(0).op(2).wait(-1).op(1).update().submit(Kind::all_gather, 6, "data");
  EXPECT_DOUBLE_EQ(simulated({step.record}).seconds, 6 + 1);
}

/// Two stages and two micro-batches; forward 1 s, backward 2 s, messages 0 s.
TEST(Timeline, APipelineHasItsBubble) {
  Step first, last;
  int sent = 0;
  for (int i = 0; i < 2; ++i)
    first.forward(i).op(1).submit(Kind::send, 0, "pipeline", 2, 1), ++sent;
  for (int i = 0; i < 2; ++i)
    first.backward(i).submit(Kind::receive, 0, "pipeline", 2, 1).wait(sent++).op(2);
  for (int i = 0; i < 2; ++i) {
    last.forward(i).submit(Kind::receive, 0, "pipeline", 2, 0).wait(2 * i).op(1);
    last.backward(i).op(2).submit(Kind::send, 0, "pipeline", 2, 0);
  }
  const Timeline timeline = simulated({first.record, last.record});
  // The first stage computes 6 s and waits for one forward and one backward of the last stage.
  EXPECT_DOUBLE_EQ(timeline.seconds, 9);
  EXPECT_DOUBLE_EQ(timeline.stages[0].waiting.at("pipeline"), 3);
}

/// Stage 1 sends to stages 0 and `far` at once, 3 s each.
double seconds_of_two_messages(int far) {
  std::vector<StepRecord> stages(4);
  Step sender, receiver;
  sender.forward(0).submit(Kind::send, 3, "pipeline", 4, 0);
  sender.submit(Kind::send, 3, "pipeline", 4, far).wait(0).wait(1);
  receiver.forward(0).submit(Kind::receive, 3, "pipeline", 4, 1).wait(0);
  stages[1] = sender.record;
  stages[0] = stages[static_cast<std::size_t>(far)] = receiver.record;
  return simulated(stages).seconds;
}

TEST(Timeline, MessagesShareALinkAndNotTwo) {
  EXPECT_DOUBLE_EQ(seconds_of_two_messages(2), 6);
  EXPECT_DOUBLE_EQ(seconds_of_two_messages(3), 3);
}

TEST(Timeline, ASumOverAllStagesWaitsForTheSlowest) {
  Step slow, fast;
  slow.forward(0).op(4).submit(Kind::all_gather, 1, "world", 2).wait(0);
  fast.forward(0).op(1).submit(Kind::all_gather, 1, "world", 2).wait(0);
  const Timeline timeline = simulated({slow.record, fast.record});
  EXPECT_DOUBLE_EQ(timeline.seconds, 5);
  EXPECT_DOUBLE_EQ(timeline.stages[1].waiting.at("world"), 4);
}

TEST(Timeline, NamesTheStageThatWaitsWithoutEnd) {
  Step first, last;
  first.forward(0).op(1);
  last.forward(0).submit(Kind::receive, 1, "pipeline", 2, 0).wait(0);
  try {
    simulated({first.record, last.record});
    FAIL() << "no error";
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "plan: stage 1 waits without end for a request of group pipeline");
  }
}

}  // namespace
}  // namespace trireme::plan
