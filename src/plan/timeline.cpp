// SPDX-License-Identifier: Apache-2.0
//
// Simulates the steps of all pipeline stages in virtual time.
//
// Each stage is a process that reads its record and advances its own clock. It stops where it waits
// for a message or a sum whose other stages have not come that far. run() lets stages run until all
// wait. Then the message network (message_network.hpp) advances to the next end of a message, and
// the stages of that message go on. Nothing depends on the order in which stages run: an end time
// is computed once all of its causes are known.

#include "trireme/plan/timeline.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "plan/machine/message_network.hpp"
#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using Event = StepRecord::Event;

// Delayed sums that take longer than a step hold back later steps only, so these need more.
constexpr int steps = 2, steps_with_delayed_sums = 16;

/// Sums and gathers of one group, in their order. Entry n is the n-th one of every member.
class Queue {
 public:
  explicit Queue(int members) : members_(members) {}
  int members() const { return members_; }

  /// A member has reached request `number` at time `start`.
  void join(std::size_t number, double start, double seconds) {
    if (number >= requests_.size()) requests_.resize(number + 1);
    Request& request = requests_[number];
    ++request.joined;
    request.start = std::max(request.start, start);
    request.seconds = std::max(request.seconds, seconds);
  }

  /// Returns the end of request `number`; nothing if a member has not joined.
  std::optional<double> end(std::size_t number) {
    for (; known_ends_ <= number; ++known_ends_) {
      if (known_ends_ >= requests_.size() || requests_[known_ends_].joined < members_)
        return std::nullopt;
      Request& request = requests_[known_ends_];
      const double free = known_ends_ == 0 ? 0 : requests_[known_ends_ - 1].end;
      request.end = std::max(request.start, free) + request.seconds;
    }
    return requests_[number].end;
  }

 private:
  struct Request {
    int joined = 0;
    double start = 0, seconds = 0, end = 0;
  };
  int members_;
  std::vector<Request> requests_;
  std::size_t known_ends_ = 0;  // requests whose end is known
};

/// Messages with one tag from one stage to another, by number, in the order of sending.
using Messages = std::vector<std::size_t>;

class TimelineSimulation {
 public:
  TimelineSimulation(std::span<const StepRecord* const> records, const StepCosts& costs,
                     TimelineDetail detail)
      : costs_(costs),
        has_spans_(detail == TimelineDetail::spans),
        network_(static_cast<int>(records.size())) {
    for (std::size_t i = 0; i < records.size(); ++i) stages_.emplace_back(i, *records[i]);
    for (const StepRecord* record : records)
      for (const StepRecord::Call& call : record->calls)
        if (call.group.name() == "delayed data") repetitions_ = steps_with_delayed_sums;
    for (Stage& stage : stages_) prepare(stage);
  }

  Timeline run() {
    run_all_steps();
    Timeline timeline;
    double begin = 0, end = 0;
    for (Stage& stage : stages_) {
      begin = std::max(begin, stage.times.begin);
      end = std::max(end, stage.times.end);
      if (has_spans_) add_requests(stage);
      timeline.stages.push_back(std::move(stage.times));
      timeline.spans.insert(timeline.spans.end(), stage.spans.begin(), stage.spans.end());
    }
    timeline.seconds = end - begin;
    return timeline;
  }

  /// Returns the end of the first step and of all its requests. `group`: of these requests alone.
  double run_first_step(std::string_view group) {
    repetitions_ = 1;
    only_group_ = group;
    run_all_steps();
    double end = 0;
    // Requests that a stage did not wait for can end once all stages have submitted them.
    for (Stage& stage : stages_)
      for (Request& request : stage.requests) known_end(stage, request);
    for (Stage& stage : stages_) {
      end = std::max(end, stage.clock);
      for (Request& request : stage.requests) {
        const std::optional<double> of_request = known_end(stage, request);
        TRIREME_EXPECT(of_request.has_value());
        end = std::max(end, *of_request);
      }
    }
    return end;
  }

 private:
  /// A submitted request.
  struct Request {
    Queue* queue = nullptr;                // a sum or gather
    std::size_t position = 0;              // in the queue, or among the messages
    Messages* messages = nullptr;          // a receive
    std::optional<std::size_t> sent = {};  // a send: the number of its message
    double seconds = 0;
    std::string_view group;
  };

  /// An event with its seconds. Adjacent ops are one event.
  struct Executed : Event {
    double seconds = 0;  // of an op or a request
  };

  struct Stage {
    Stage(std::size_t number_in, const StepRecord& record_in)
        : number(static_cast<int>(number_in)), record(record_in) {}
    int number;
    const StepRecord& record;
    std::vector<Executed> events;
    std::size_t repeat_begin = 0, repeat_end = 0;  // of `events`
    int repetition = 0;
    std::size_t next = 0;    // event
    std::int64_t round = 0;  // the period of record.repeat that runs, or ran last
    double clock = 0;
    std::vector<Request> requests;                      // of all repetitions
    std::map<std::string_view, std::size_t> positions;  // next position in the queue of a group
    // Without overlap: the submitted requests of each queue that have not started.
    std::map<Queue*, std::deque<std::size_t>> waiting_to_join;
    std::map<std::pair<int, int>, std::size_t> received;  // by sender and tag
    // Values of the step that runs.
    Event::Kind phase = Event::Kind::forward;
    StageTimes times;
    std::vector<StageSpan> spans;
  };

  void run_all_steps() {
    advance_all();
    // Time passes in the network only if no stage can advance. So what the stages send next is not
    // earlier.
    while (const std::optional<MessageNetwork::Ended> ended = network_.advance()) {
      joined_stages_ = false;
      advance(stages_[static_cast<std::size_t>(ended->from)]);
      advance(stages_[static_cast<std::size_t>(ended->to)]);
      if (joined_stages_) advance_all();
    }
    for (const Stage& stage : stages_)
      if (stage.repetition < repetitions_) throw Failure("plan: " + describe_wait(stage));
  }

  void advance_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Stage& stage : stages_) moved = advance(stage) || moved;
    }
  }

  void prepare(Stage& stage) {
    const StepRecord& record = stage.record;
    std::vector<double> op_seconds;
    for (const ops::OpCall& op : record.ops) op_seconds.push_back(costs_.op_seconds(op));
    for (std::size_t i = 0; i < record.events.size(); ++i) {
      const Event& event = record.events[i];
      if (i == record.repeat.begin) stage.repeat_begin = stage.events.size();
      // Ops that are repeated are not joined with others.
      const bool is_cut = i == record.repeat.begin || i == record.repeat.end;
      if (i == record.repeat.end) stage.repeat_end = stage.events.size();
      if (event.kind == Event::Kind::op) {
        if (is_cut || stage.events.empty() || stage.events.back().kind != Event::Kind::op)
          stage.events.push_back({event});
        stage.events.back().seconds += op_seconds[event.index];
        continue;
      }
      stage.events.push_back({event});
      if (event.kind != Event::Kind::call) continue;
      const StepRecord::Call& call = record.calls[event.index];
      if (call.kind != EngineKind::wait && call.kind != EngineKind::quiesce)
        stage.events.back().seconds = costs_.request_seconds(call);
    }
  }

  /// Returns the number of stages that take part in the sums of a group: data, tensor and batch
  /// norm groups lie within a stage.
  int members(std::string_view group) const {
    if (group == "tied") return 2;
    return group == "world" || group == "model" || group == "pipeline"
               ? static_cast<int>(stages_.size())
               : 1;
  }

  Queue& queue_of(const Stage& stage, std::string_view group) {
    const int count = members(group);
    const int owner = count == 1 ? stage.number : -1;
    return queues_.try_emplace({std::string(group), owner}, count).first->second;
  }

  /// Runs a stage until it is done or must wait for another. Returns whether it has moved.
  bool advance(Stage& stage) {
    bool moved = false;
    const std::int64_t last_round = stage.record.repeat.times - 1;
    for (; stage.repetition < repetitions_; ++stage.repetition, stage.next = 0, stage.round = 0) {
      if (stage.next == 0) begin_step(stage);
      while (stage.next < stage.events.size()) {
        if (!execute(stage, stage.events[stage.next])) return moved;
        moved = true;
        ++stage.next;
        if (stage.next != stage.repeat_end || stage.round == last_round) continue;
        ++stage.round;
        stage.next = stage.repeat_begin;
      }
      close_span(stage);
      stage.times.end = stage.clock;
    }
    return moved;
  }

  /// Returns whether spans of this step are kept.
  bool keeps_spans(const Stage& stage) const {
    return has_spans_ && stage.repetition + 1 == repetitions_;
  }

  /// Adds the spans of requests that end in the last step or behind it.
  void add_requests(Stage& stage) {
    for (Request& request : stage.requests) {
      if (request.messages != nullptr) continue;  // The sender has it.
      const std::optional<double> end = known_end(stage, request);
      if (!end || *end <= stage.times.begin || request.seconds == 0) continue;
      stage.spans.push_back(
          {.stage = stage.number,
           .kind = StageSpan::Kind::request,
           .group = request.group,
           .begin = request.sent ? network_.begin(*request.sent) : *end - request.seconds,
           .end = *end});
    }
  }

  void begin_step(Stage& stage) {
    stage.times = {};
    stage.times.begin = stage.clock;
    stage.spans.clear();
    stage.phase = Event::Kind::forward;
  }

  bool execute(Stage& stage, const Executed& event) {
    switch (event.kind) {
      case Event::Kind::forward:
      case Event::Kind::backward:
      case Event::Kind::update: begin_phase(stage, event); return true;
      case Event::Kind::op: run_op(stage, event.seconds); return true;
      case Event::Kind::call: return call(stage, stage.record.calls[event.index], event.seconds);
    }
    return true;
  }

  void begin_phase(Stage& stage, const Event& event) {
    close_span(stage);
    stage.phase = event.kind;
    if (!keeps_spans(stage)) return;
    const auto kind = event.kind == Event::Kind::forward    ? StageSpan::Kind::forward
                      : event.kind == Event::Kind::backward ? StageSpan::Kind::backward
                                                            : StageSpan::Kind::update;
    stage.spans.push_back({.stage = stage.number,
                           .kind = kind,
                           .micro_batch = micro_batch_of(stage, event),
                           .begin = stage.clock,
                           .end = stage.clock});
  }

  /// Returns the number of an action's micro-batch in the step with all of its periods.
  static std::int64_t micro_batch_of(const Stage& stage, const Event& event) {
    return event.index + stage.round * stage.record.repeat.micro_batches;
  }

  void close_span(Stage& stage) {
    if (!stage.spans.empty()) stage.spans.back().end = stage.clock;
  }

  void run_op(Stage& stage, double seconds) {
    if (!only_group_.empty()) return;
    stage.clock += seconds;
    double& part = stage.phase == Event::Kind::forward    ? stage.times.forward
                   : stage.phase == Event::Kind::backward ? stage.times.backward
                                                          : stage.times.update;
    part += seconds;
  }

  bool call(Stage& stage, const StepRecord::Call& call, double seconds) {
    if (call.kind == EngineKind::wait) return wait(stage, call);
    if (call.kind == EngineKind::quiesce) return wait_for_all(stage);
    if (!only_group_.empty() && call.group.name() != only_group_) {
      stage.requests.emplace_back();  // done from the start
      return true;
    }
    Request request{.seconds = seconds, .group = call.group.name()};
    if (call.kind == EngineKind::send) {
      request.sent = network_.send(stage.number, call.peer, costs_.leaves_node(call), stage.clock,
                                   request.seconds);
      in_flight_[{stage.number, call.peer, call.tag}].push_back(*request.sent);
    } else if (call.kind == EngineKind::receive) {
      request.messages = &in_flight_[{call.peer, stage.number, call.tag}];
      request.position = stage.received[{call.peer, call.tag}]++;
    } else {
      request.queue = &queue_of(stage, request.group);
      request.position = stage.positions[request.group]++;
      if (costs_.overlaps)
        join(stage, request);
      else
        stage.waiting_to_join[request.queue].push_back(stage.requests.size());
    }
    stage.requests.push_back(request);
    return true;
  }

  void join(const Stage& stage, const Request& request) {
    request.queue->join(request.position, stage.clock, request.seconds);
    if (request.queue->members() > 1) joined_stages_ = true;
  }

  /// Returns the end of a request; nothing if it is not known yet.
  std::optional<double> known_end(Stage& stage, Request& request) {
    if (request.queue != nullptr) {
      // Earlier requests of the queue run first.
      std::deque<std::size_t>& earlier = stage.waiting_to_join[request.queue];
      while (!earlier.empty() && stage.requests[earlier.front()].position <= request.position) {
        join(stage, stage.requests[earlier.front()]);
        earlier.pop_front();
      }
      return request.queue->end(request.position);
    }
    if (request.sent) return network_.end(*request.sent);
    if (request.messages == nullptr) return 0;  // of a group that is left out
    if (request.position >= request.messages->size()) return std::nullopt;
    return network_.end((*request.messages)[request.position]);
  }

  bool wait(Stage& stage, const StepRecord::Call& call) {
    const std::int64_t number = stage.record.number_in_round(call.number, stage.round) +
                                stage.repetition * stage.record.requests;
    if (number < 0) return true;  // of the step before the first one
    Request& request = stage.requests[static_cast<std::size_t>(number)];
    const std::optional<double> end = known_end(stage, request);
    if (!end) return false;
    wait_until(stage, *end, request.group);
    return true;
  }

  bool wait_for_all(Stage& stage) {
    for (Request& request : stage.requests) {
      const std::optional<double> end = known_end(stage, request);
      if (!end) return false;
      wait_until(stage, *end, request.group);
    }
    return true;
  }

  void wait_until(Stage& stage, double end, std::string_view group) {
    if (end <= stage.clock) return;
    stage.times.waiting[std::string(group)] += end - stage.clock;
    if (keeps_spans(stage))
      stage.spans.insert(stage.spans.end() - (stage.spans.empty() ? 0 : 1),
                         {.stage = stage.number,
                          .kind = StageSpan::Kind::wait,
                          .group = group,
                          .begin = stage.clock,
                          .end = end});
    stage.clock = end;
  }

  std::string describe_wait(const Stage& stage) const {
    const StepRecord::Call& call = stage.record.calls[stage.events[stage.next].index];
    for (const StepRecord::Call& other : stage.record.calls)
      if (other.kind != EngineKind::wait && other.kind != EngineKind::quiesce &&
          other.number == call.number)
        return fmt::format("stage {} waits without end for {} of group {}", stage.number,
                           other.purpose.describe(), other.group.name());
    return fmt::format("stage {} waits without end for a request of the step before", stage.number);
  }

  int repetitions_ = steps;
  std::string_view only_group_;  // empty: all
  const StepCosts& costs_;
  bool has_spans_;
  MessageNetwork network_;
  bool joined_stages_ = false;  // since the last message: a request of several stages
  std::deque<Stage> stages_;
  std::map<std::pair<std::string, int>, Queue> queues_;
  std::map<std::tuple<int, int, int>, Messages> in_flight_;
};

}  // namespace

Timeline simulate(std::span<const StepRecord* const> stages, const StepCosts& costs,
                  TimelineDetail detail) {
  return TimelineSimulation(stages, costs, detail).run();
}

double first_step_seconds(std::span<const StepRecord* const> stages, const StepCosts& costs,
                          std::string_view group) {
  return TimelineSimulation(stages, costs, TimelineDetail::seconds).run_first_step(group);
}

}  // namespace trireme::plan
