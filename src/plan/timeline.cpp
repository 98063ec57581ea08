// Simulates the steps of all pipeline stages in virtual time.
//
// Each stage is a process that reads its record and advances its own clock. It stops where it waits
// for a message or a sum whose other stages have not come that far. run() lets the stages run in
// turns until all are done. Nothing depends on the order of the turns: an end time is computed once
// all of its causes are known.

#include "trireme/plan/timeline.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using Event = StepRecord::Event;
using Kind = comm::Engine::Call::Kind;

// Delayed sums that take longer than a step hold back later steps only, so these need more.
constexpr int steps = 2, steps_with_delayed_sums = 16;

/// Sums and gathers of one group, in their order. Entry n is the n-th one of every member.
class Queue {
 public:
  explicit Queue(int members) : members_(members) {}

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

/// Messages with one tag from one stage to another: times of arrival, in the order of sending.
using Messages = std::vector<double>;

class Simulation {
 public:
  Simulation(std::span<const StepRecord* const> records, const StepCosts& costs) : costs_(costs) {
    for (std::size_t i = 0; i < records.size(); ++i) stages_.emplace_back(i, *records[i]);
    for (const StepRecord* record : records)
      for (const StepRecord::Call& call : record->calls)
        if (call.group.name() == "delayed data") repetitions_ = steps_with_delayed_sums;
    // The seconds of each op, once.
    for (Stage& stage : stages_)
      for (const ops::OpCall& op : stage.record.ops)
        stage.op_seconds.push_back(costs.op_seconds(op));
  }

  Timeline run() {
    run_all_steps();
    Timeline timeline;
    double begin = 0, end = 0;
    for (Stage& stage : stages_) {
      begin = std::max(begin, stage.times.begin);
      end = std::max(end, stage.times.end);
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
    Queue* queue = nullptr;        // a sum or gather
    std::size_t position = 0;      // in the queue, or among the messages
    Messages* messages = nullptr;  // a receive
    double end = 0;                // a send
    double seconds = 0;
    std::string_view group;
  };

  struct Stage {
    Stage(std::size_t number_in, const StepRecord& record_in)
        : number(static_cast<int>(number_in)), record(record_in) {}
    int number;
    const StepRecord& record;
    std::vector<double> op_seconds;
    int repetition = 0;
    std::size_t next = 0;  // event
    double clock = 0;
    std::vector<Request> requests;                      // of all repetitions
    std::map<std::string_view, std::size_t> positions;  // next position in the queue of a group
    std::map<int, double> link_free;                    // messages to a stage run in order
    // Without overlap: the submitted requests of each queue that have not started.
    std::map<Queue*, std::deque<std::size_t>> waiting_to_join;
    std::map<std::pair<int, int>, std::size_t> received;  // by sender and tag
    // Values of the step that runs.
    Event::Kind phase = Event::Kind::forward;
    StageTimes times;
    std::vector<StageSpan> spans;
  };

  void run_all_steps() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Stage& stage : stages_) moved = advance(stage) || moved;
    }
    for (const Stage& stage : stages_)
      if (stage.repetition < repetitions_) throw Failure("plan: " + describe_wait(stage));
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
    for (; stage.repetition < repetitions_; ++stage.repetition, stage.next = 0) {
      if (stage.next == 0) begin_step(stage);
      for (; stage.next < stage.record.events.size(); ++stage.next) {
        if (!execute(stage, stage.record.events[stage.next])) return moved;
        moved = true;
      }
      close_span(stage);
      stage.times.end = stage.clock;
    }
    return moved;
  }

  bool is_last(const Stage& stage) const { return stage.repetition + 1 == repetitions_; }

  void begin_step(Stage& stage) {
    stage.times = {};
    stage.times.begin = stage.clock;
    stage.spans.clear();
    stage.phase = Event::Kind::forward;
  }

  bool execute(Stage& stage, const Event& event) {
    switch (event.kind) {
      case Event::Kind::forward:
      case Event::Kind::backward:
      case Event::Kind::update: begin_phase(stage, event); return true;
      case Event::Kind::op: run_op(stage, stage.op_seconds[event.index]); return true;
      case Event::Kind::call: return call(stage, stage.record.calls[event.index]);
    }
    return true;
  }

  void begin_phase(Stage& stage, const Event& event) {
    close_span(stage);
    stage.phase = event.kind;
    if (!is_last(stage)) return;
    const auto kind = event.kind == Event::Kind::forward    ? StageSpan::Kind::forward
                      : event.kind == Event::Kind::backward ? StageSpan::Kind::backward
                                                            : StageSpan::Kind::update;
    stage.spans.push_back({.stage = stage.number,
                           .kind = kind,
                           .micro_batch = event.index,
                           .begin = stage.clock,
                           .end = stage.clock});
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

  bool call(Stage& stage, const StepRecord::Call& call) {
    if (call.kind == Kind::wait) return wait(stage, call);
    if (call.kind == Kind::quiesce) return wait_for_all(stage);
    if (!only_group_.empty() && call.group.name() != only_group_) {
      stage.requests.emplace_back();  // done from the start
      return true;
    }
    Request request{.seconds = costs_.request_seconds(call), .group = call.group.name()};
    if (call.kind == Kind::send) {
      double& free = stage.link_free[call.peer];
      request.end = free = std::max(free, stage.clock) + request.seconds;
      in_flight_[{stage.number, call.peer, call.tag}].push_back(request.end);
    } else if (call.kind == Kind::receive) {
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
    if (request.messages == nullptr) return request.end;
    if (request.position >= request.messages->size()) return std::nullopt;
    return (*request.messages)[request.position];
  }

  bool wait(Stage& stage, const StepRecord::Call& call) {
    const std::int64_t number = call.number + stage.repetition * stage.record.requests;
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
    if (is_last(stage))
      stage.spans.insert(stage.spans.end() - (stage.spans.empty() ? 0 : 1),
                         {.stage = stage.number,
                          .kind = StageSpan::Kind::wait,
                          .group = group,
                          .begin = stage.clock,
                          .end = end});
    stage.clock = end;
  }

  std::string describe_wait(const Stage& stage) const {
    const StepRecord::Call& call = stage.record.calls[stage.record.events[stage.next].index];
    const std::int64_t number = call.number + stage.repetition * stage.record.requests;
    std::int64_t seen = stage.repetition * stage.record.requests;
    for (const StepRecord::Call& other : stage.record.calls) {
      if (other.kind == Kind::wait || other.kind == Kind::quiesce) continue;
      if (seen++ != number) continue;
      return fmt::format("stage {} waits without end for {} of group {}", stage.number,
                         other.purpose.describe(), other.group.name());
    }
    return fmt::format("stage {} waits without end for a request of the step before", stage.number);
  }

  int repetitions_ = steps;
  std::string_view only_group_;  // empty: all
  const StepCosts& costs_;
  std::deque<Stage> stages_;
  std::map<std::pair<std::string, int>, Queue> queues_;
  std::map<std::tuple<int, int, int>, Messages> in_flight_;
};

}  // namespace

Timeline simulate(std::span<const StepRecord* const> stages, const StepCosts& costs) {
  return Simulation(stages, costs).run();
}

double first_step_seconds(std::span<const StepRecord* const> stages, const StepCosts& costs,
                          std::string_view group) {
  return Simulation(stages, costs).run_first_step(group);
}

}  // namespace trireme::plan
