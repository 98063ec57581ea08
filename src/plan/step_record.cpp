// Records a step of one rank. train::Replica runs it on the meta device and reports each op, each
// call of the communication engine and each action of the pipeline.

#include "trireme/plan/step_record.hpp"

#include <map>
#include <string_view>
#include <tuple>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using Event = StepRecord::Event;

/// Collects the events of one step.
class Collector {
 public:
  train::StepObserver observer() {
    return {.op = [this](const ops::OpCall& call) { add(call); },
            .request = [this](const comm::Engine::Call& call) { add(call); },
            .action =
                [this](const parallel::PipelineAction& action) {
                  add(action.forward ? Event::Kind::forward : Event::Kind::backward,
                      static_cast<std::size_t>(action.micro_batch));
                },
            .update = [this] { add(Event::Kind::update, 0); }};
  }

  /// Returns the step with its requests numbered from 0. `submitted`: requests before it.
  StepRecord take(std::uint64_t submitted) {
    for (StepRecord::Call& call : record_.calls)
      call.number =
          static_cast<std::int64_t>(call.request) - static_cast<std::int64_t>(submitted) - 1;
    return std::move(record_);
  }

  std::uint64_t last_request() const { return last_request_; }

 private:
  using Key = std::tuple<std::string_view, double, double, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, ElementType, bool>;

  void add(const ops::OpCall& call) {
    const Key key{call.name, call.flops, call.bytes, call.products, call.m,
                  call.n,    call.k,     call.type,  call.float8};
    const auto [place, is_new] = numbers_.try_emplace(key, record_.ops.size());
    if (is_new) {
      record_.ops.push_back(call);
      record_.counts.push_back(0);
    }
    ++record_.counts[place->second];
    add(Event::Kind::op, place->second);
  }

  void add(const comm::Engine::Call& call) {
    using Kind = comm::Engine::Call::Kind;
    if (call.kind != Kind::wait && call.kind != Kind::quiesce) {
      ++record_.requests;
      last_request_ = call.request;
    }
    record_.calls.push_back({call});
    add(Event::Kind::call, record_.calls.size() - 1);
  }

  void add(Event::Kind kind, std::size_t index) {
    record_.events.push_back({kind, static_cast<std::uint32_t>(index)});
  }

  StepRecord record_;
  std::map<Key, std::size_t> numbers_;
  std::uint64_t last_request_ = 0;
};

}  // namespace

double StepRecord::total(double ops::OpWork::* part) const {
  double sum = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) sum += ops[i].*part * static_cast<double>(counts[i]);
  return sum;
}

StepRecord record_step(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
                       int world_rank, DeviceKind target) {
  std::vector<Collector> steps(2);
  const std::vector<train::StepObserver> observers{steps[0].observer(), steps[1].observer()};
  train::Replica::rehearse(options, shape, world_rank, target, observers);
  const std::uint64_t before = steps[0].last_request();
  const std::int64_t first = steps[0].take(0).requests;
  StepRecord record = steps[1].take(before);
  // The numbers of requests of the step before rely on this.
  TRIREME_EXPECT(first == record.requests);
  return record;
}

}  // namespace trireme::plan
