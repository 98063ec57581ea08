// SPDX-License-Identifier: Apache-2.0
//
// Records a step of one rank. train::Replica runs it on the meta device and reports each op, each
// call of the communication engine and each action of the pipeline.

#include "trireme/plan/step_record.hpp"

#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using Event = StepRecord::Event;

bool is_request(const comm::Engine::Call& call) {
  return call.kind != EngineKind::wait && call.kind != EngineKind::quiesce;
}

/// Returns whether two calls are equal, apart from numbers of requests and micro-batches.
bool are_alike(const StepRecord::Call& a, const StepRecord::Call& b) {
  return a.kind == b.kind && a.group.name() == b.group.name() && a.bytes == b.bytes &&
         a.sent_bytes == b.sent_bytes && a.parts == b.parts && a.transfer_type == b.transfer_type &&
         a.order == b.order && a.peer == b.peer && a.tag == b.tag &&
         a.purpose.label == b.purpose.label;
}

/// Counts the requests of the step in front of the recorded one.
class RequestCounter {
 public:
  train::StepObserver observer() {
    return {.request = [this](const comm::Engine::Call& call) {
      if (!is_request(call)) return;
      ++requests_;
      last_ = call.request;
    }};
  }
  std::int64_t requests() const { return requests_; }
  std::uint64_t last() const { return last_; }

 private:
  std::int64_t requests_ = 0;
  std::uint64_t last_ = 0;
};

/// Collects the events of one step.
class Collector {
 public:
  train::StepObserver observer() {
    return {.op = [this](const ops::OpCall& call) { add(call); },
            .request = [this](const comm::Engine::Call& call) { add(call); },
            .action =
                [this](const parallel::PipelineAction& action) {
                  actions_.push_back({record_.events.size(), record_.requests});
                  add(action.forward ? Event::Kind::forward : Event::Kind::backward,
                      static_cast<std::size_t>(action.micro_batch));
                },
            .repeat = [this](const parallel::ShortSchedule& schedule) { repeat(schedule); },
            .update = [this] { add(Event::Kind::update, 0); }};
  }

  /// Returns the step with its requests numbered from 0; none if the period that was kept differs
  /// from the one in front of it. `submitted`: requests before the step.
  std::optional<StepRecord> take(std::uint64_t submitted) {
    for (StepRecord::Call& call : record_.calls)
      call.number =
          static_cast<std::int64_t>(call.request) - static_cast<std::int64_t>(submitted) - 1;
    if (record_.repeat.times > 1 && !is_periodic()) return std::nullopt;
    // An op of the period counts as often as it runs.
    const StepRecord::Repeat& repeat = record_.repeat;
    record_.requests += (repeat.times - 1) * repeat.requests;
    for (std::size_t i = repeat.begin; i < repeat.end; ++i)
      if (const Event& event = record_.events[i]; event.kind == Event::Kind::op)
        record_.counts[event.index] += repeat.times - 1;
    return std::move(record_);
  }

  /// Requests that were recorded.
  std::int64_t requests() const { return record_.requests; }

 private:
  // Numbers differ sooner than names.
  using Key = std::tuple<double, double, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         ElementType, bool, std::string_view>;
  /// The first event and the first request of an action.
  struct Action {
    std::size_t event = 0;
    std::int64_t request = 0;
  };

  void repeat(const parallel::ShortSchedule& schedule) {
    const Action begin = actions_[schedule.begin];
    record_.repeat = {.begin = begin.event,
                      .end = record_.events.size(),
                      .times = schedule.times,
                      .requests = record_.requests - begin.request,
                      .micro_batches = schedule.period_micro_batches,
                      .first = actions_[schedule.steady_begin].request};
    before_ = actions_[2 * schedule.begin - schedule.end].event;
  }

  /// Compares the repeated period with the one in front of it.
  bool is_periodic() const {
    const StepRecord::Repeat& repeat = record_.repeat;
    if (repeat.begin - before_ != repeat.end - repeat.begin) return false;
    for (std::size_t i = repeat.begin; i < repeat.end; ++i) {
      const Event &here = record_.events[i], &before = record_.events[before_ + i - repeat.begin];
      if (here.kind != before.kind) return false;
      switch (here.kind) {
        case Event::Kind::op:
          if (here.index != before.index) return false;
          break;
        case Event::Kind::call: {
          const StepRecord::Call &call = record_.calls[here.index],
                                 &earlier = record_.calls[before.index];
          if (!are_alike(call, earlier)) return false;
          if (call.kind != EngineKind::quiesce &&
              (call.number != earlier.number + repeat.requests || call.number < repeat.first))
            return false;
          break;
        }
        case Event::Kind::forward:
        case Event::Kind::backward:
          if (here.index != before.index + repeat.micro_batches) return false;
          break;
        case Event::Kind::update: return false;
      }
    }
    return true;
  }

  void add(const ops::OpCall& call) {
    const Key key{call.flops, call.bytes, call.products, call.m,      call.n,
                  call.k,     call.type,  call.float8,   call.op.name};
    const auto [place, is_new] = numbers_.try_emplace(key, record_.ops.size());
    if (is_new) {
      record_.ops.push_back(call);
      record_.counts.push_back(0);
    }
    ++record_.counts[place->second];
    add(Event::Kind::op, place->second);
  }

  void add(const comm::Engine::Call& call) {
    if (is_request(call)) ++record_.requests;
    record_.calls.push_back({call});
    add(Event::Kind::call, record_.calls.size() - 1);
  }

  void add(Event::Kind kind, std::size_t index) {
    record_.events.push_back({kind, static_cast<std::uint32_t>(index)});
  }

  StepRecord record_;
  std::map<Key, std::size_t> numbers_;
  std::vector<Action> actions_;
  std::size_t before_ = 0;  ///< The first event of the period in front of the repeated one.
};

}  // namespace

double StepRecord::total(double ops::OpWork::* part) const {
  double sum = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) sum += ops[i].*part * static_cast<double>(counts[i]);
  return sum;
}

StepRecord record_step(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
                       int world_rank, DeviceKind target,
                       train::RehearsedMicroBatches micro_batches) {
  RequestCounter before;
  Collector step;
  train::Replica::rehearse(options, shape, world_rank, target,
                           std::vector{before.observer(), step.observer()}, micro_batches);
  // The numbers of requests of the step before rely on this. With delayed sums the first step makes
  // no update, so it has fewer requests; those that the next step waits for are behind the update.
  TRIREME_EXPECT(before.requests() == step.requests() ||
                 options.sync == parallel::SyncKind::delayed);
  if (std::optional<StepRecord> record = step.take(before.last())) return std::move(*record);
  TRIREME_EXPECT(micro_batches == train::RehearsedMicroBatches::different);
  return record_step(options, shape, world_rank, target, train::RehearsedMicroBatches::all);
}

}  // namespace trireme::plan
