// Lower bounds of time and memory for the search of layouts. docs/design/planning.md says why no
// layout needs less.
//
// Each bound is made of steps that are recorded once on the meta device with few micro-batches and
// without data ranks: their ops and requests are those that every layout has at least.
#include "search_bounds.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/model/model.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/step_record.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::plan {
namespace {

using Event = StepRecord::Event;
using Kind = comm::Engine::Call::Kind;

// A prediction adds the same numbers in another order.
constexpr double below_rounding = 1 - 1e-9;

/// Returns the machine with the best efficiency of each table for every shape, and without gaps
/// between ops.
Machine idealized(Machine machine) {
  const auto best = [](std::vector<double>& values, double& constant) {
    for (const double value : values) constant = std::max(constant, value);
    values.clear();
  };
  for (auto& [name, table] : machine.efficiency) {
    best(table.compute_grid, table.compute);
    best(table.bandwidth_curve, table.bandwidth);
    table.bytes.clear();
    table.tile_m = table.tile_n = 0;
    table.half_k = 0;
  }
  machine.overhead.launch_seconds = 0;
  return machine;
}

/// A model on one stage and one data rank, which sends no gradients and keeps all state on the
/// device.
train::ReplicaOptions undivided(train::ReplicaOptions options, std::int64_t micro_batches) {
  options.pipeline_schedule = parallel::PipelineKind::one_forward_one_backward;
  options.pipeline_chunks = 1;
  options.shard = parallel::ShardKind::none;
  options.offload = {};
  options.accumulation = micro_batches;
  options.global = micro_batches * options.micro;
  return options;
}

/// Returns the seconds of the ops before the update.
double op_seconds_before_update(const StepRecord& step, const StepCosts& costs) {
  std::vector<double> seconds;
  for (const ops::OpCall& op : step.ops) seconds.push_back(costs.op_seconds(op));
  double sum = 0;
  for (const Event& event : step.events) {
    if (event.kind == Event::Kind::update) break;
    if (event.kind == Event::Kind::op) sum += seconds[event.index];
  }
  return sum;
}

bool is_queued(const StepRecord::Call& call) {
  return call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter ||
         call.kind == Kind::all_gather;
}

/// Returns the seconds of all sums and gathers of the tensor group. They run one after the other.
double tensor_seconds(const StepRecord& step, const StepCosts& costs) {
  double sum = 0;
  for (const StepRecord::Call& call : step.calls)
    if (is_queued(call) && call.group.name() == "tensor") sum += costs.request_seconds(call);
  return sum;
}

/// Returns the event after the last op in front of the update.
std::size_t begin_of_end(const StepRecord& step) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < step.events.size(); ++i) {
    if (step.events[i].kind == Event::Kind::update) break;
    if (step.events[i].kind == Event::Kind::op) begin = i + 1;
  }
  return begin;
}

/// Returns the least bytes of a rank's part of `bytes` that the data ranks share.
///
/// Buckets are cut at whole rows, so a part may be smaller than the mean, in each bucket by a row
/// at most. `row_share`: the bytes of the longest row as a part of all bytes.
double shared(double bytes, const parallel::MeshShape& shape, double row_share, double buckets) {
  if (shape.data == 1) return bytes;
  return bytes * std::max(0.0, 1.0 / shape.data - buckets * row_share);
}

}  // namespace

double least_pipeline_seconds(double seconds, int stages, int chunks, std::int64_t micro_batches) {
  const auto count = static_cast<double>(micro_batches);
  // The first forward of a stage waits for one chunk of the others only.
  if (chunks > 1) return seconds * count / stages;
  return seconds / (1 - std::pow(1 - 1 / count, stages));
}

SearchBounds::SearchBounds(const Machine& machine, DeviceKind device, std::int64_t max_micro)
    : machine_(machine), ideal_(idealized(machine)), device_(device), max_micro_(max_micro) {}

SearchBounds::StepWork SearchBounds::record(const Machine& machine, train::ReplicaOptions options,
                                            int tensor, const parallel::MeshShape& shape) {
  // Costs depend on the ranks that share nodes and links, so they are those of the whole run.
  const StepCosts costs =
      costs_on(machine, {shape.ranks() / tensor, tensor, 1, 1}, options.tfloat32);
  double ops[2], sums[2];
  for (const int micro_batches : {1, 2}) {
    const StepRecord step =
        record_step(undivided(options, micro_batches), {.data = 1, .tensor = tensor}, 0, device_);
    ops[micro_batches - 1] = op_seconds_before_update(step, costs);
    sums[micro_batches - 1] = tensor_seconds(step, costs);
  }
  return {.ops = {ops[0], ops[1] - ops[0]}, .tensor = {sums[0], sums[1] - sums[0]}};
}

double SearchBounds::ideal_seconds(const train::ReplicaOptions& options,
                                   const parallel::MeshShape& shape) {
  auto found = ideal_work_.find(options.recompute);
  if (found == ideal_work_.end()) {
    // The largest micro-batch reads the weights least often for each sample.
    train::ReplicaOptions whole = options;
    whole.micro = max_micro_;
    whole.sequence = false;
    found = ideal_work_.emplace(options.recompute, record(ideal_, whole, 1, shape)).first;
  }
  const double part = static_cast<double>(options.micro) / static_cast<double>(max_micro_);
  return below_rounding * least_pipeline_seconds(found->second.ops.least() * part / shape.tensor,
                                                 shape.pipeline, options.pipeline_chunks,
                                                 options.accumulation);
}

double SearchBounds::recorded_seconds(const train::ReplicaOptions& options,
                                      const parallel::MeshShape& shape) {
  const std::tuple key{shape.tensor, options.micro, options.recompute, options.sequence};
  auto found = stage_work_.find(key);
  if (found == stage_work_.end())
    found = stage_work_.emplace(key, record(machine_, options, shape.tensor, shape)).first;
  const StepWork& work = found->second;
  const double sums = work.tensor.least() * static_cast<double>(options.accumulation);
  const double passes =
      std::max({ideal_seconds(options, shape), sums / shape.pipeline,
                least_pipeline_seconds(work.ops.least(), shape.pipeline, options.pipeline_chunks,
                                       options.accumulation)});
  const StepEnds& ends = ends_of(options, shape);
  double seconds = std::max({passes, ends.first.data, ends.last.data});
  // Stages that do not wait for each other may end the step at different times.
  if (shape.pipeline == 1)
    seconds = ends.first.least_end(passes);
  else if (ends.first.synchronizes && ends.last.synchronizes)
    seconds = std::max(ends.first.least_end(passes), ends.last.least_end(0));
  return below_rounding * seconds;
}

const SearchBounds::StepEnds& SearchBounds::ends_of(const train::ReplicaOptions& options,
                                                    const parallel::MeshShape& shape) {
  const std::tuple key{shape.tensor, shape.pipeline, options.pipeline_chunks, options.shard};
  if (const auto found = step_ends_.find(key); found != step_ends_.end()) return found->second;
  StepEnds ends{.first = record_end(options, shape, 0), .last = {}};
  ends.last = shape.pipeline == 1 ? ends.first : record_end(options, shape, shape.pipeline - 1);
  return step_ends_.emplace(key, std::move(ends)).first->second;
}

SearchBounds::StepEnd SearchBounds::record_end(const train::ReplicaOptions& options,
                                               const parallel::MeshShape& shape, int stage) {
  // Requests of the data group are those of every micro-batch, so the fewest do.
  train::ReplicaOptions few = options;
  few.recompute = 0;
  few.offload = {};
  few.accumulation = options.pipeline_chunks > 1 ? shape.pipeline : 1;
  few.global = few.micro * few.accumulation * shape.data;
  const StepRecord step = record_step(few, shape, parallel::rank_of(shape, {stage, 0, 0}), device_);
  const StepCosts costs = costs_on(machine_, shape, options.tfloat32);
  StepEnd end;
  std::map<std::string, int> queues{{"data", 0}};
  std::map<std::int64_t, double> earlier;      // least ends of requests of the data group
  std::map<std::int64_t, std::string> groups;  // of requests that are submitted at the end
  const std::size_t begin = begin_of_end(step);
  for (std::size_t i = 0; i < step.events.size(); ++i) {
    const Event& event = step.events[i];
    if (event.kind == Event::Kind::op && i >= begin)
      end.events.push_back({StepEnd::Event::Kind::op, costs.op_seconds(step.ops[event.index])});
    if (event.kind != Event::Kind::call) continue;
    const StepRecord::Call& call = step.calls[event.index];
    const std::string group = call.group.name();
    if (is_queued(call)) {
      const double seconds = costs.request_seconds(call);
      if (i >= begin) {
        const int queue = queues.try_emplace(group, static_cast<int>(queues.size())).first->second;
        end.events.push_back({StepEnd::Event::Kind::submit, seconds, queue, call.number});
        groups[call.number] = group;
      } else if (group == "data") {
        end.data += seconds;
        earlier[call.number] = end.data;
      }
    } else if (i >= begin && call.kind == Kind::quiesce) {
      end.events.push_back({StepEnd::Event::Kind::wait_for_all});
    } else if (i >= begin && call.kind == Kind::wait) {
      const auto known = earlier.find(call.number);
      end.events.push_back(
          {StepEnd::Event::Kind::wait, known == earlier.end() ? 0 : known->second, 0, call.number});
      const auto here = groups.find(call.number);
      if (here != groups.end() && (here->second == "world" || here->second == "model"))
        end.synchronizes = true;
    }
  }
  end.queues = static_cast<int>(queues.size());
  return end;
}

double SearchBounds::StepEnd::least_end(double seconds) const {
  double clock = seconds;
  std::vector<double> free(static_cast<std::size_t>(queues), 0.0);
  free[0] = data;
  std::map<std::int64_t, double> ends;
  for (const Event& event : events) {
    switch (event.kind) {
      case Event::Kind::op: clock += event.seconds; break;
      case Event::Kind::submit: {
        double& queue_end = free[static_cast<std::size_t>(event.queue)];
        queue_end = std::max(queue_end, clock) + event.seconds;
        ends[event.number] = queue_end;
        break;
      }
      case Event::Kind::wait:
        clock = std::max(clock, event.seconds);
        if (const auto found = ends.find(event.number); found != ends.end())
          clock = std::max(clock, found->second);
        break;
      case Event::Kind::wait_for_all:
        for (const double queue_end : free) clock = std::max(clock, queue_end);
        break;
    }
  }
  return clock;
}

std::int64_t SearchBounds::state_bytes(const train::ReplicaOptions& options,
                                       const parallel::MeshShape& shape) {
  auto found = state_by_tensor_.find(shape.tensor);
  if (found == state_by_tensor_.end()) {
    train::ReplicaOptions whole = undivided(options, 1);
    whole.recompute = 1;
    const train::MemoryPlan plan =
        train::Replica::measure(whole, {.data = 1, .tensor = shape.tensor}, 0, device_);
    State state{.parameters = static_cast<double>(plan.parameters),
                .gradients = static_cast<double>(plan.gradients),
                .optimizer = static_cast<double>(plan.optimizer)};
    const model::Model model(options.model, options.input_shape(), options.classes,
                             {0, shape.tensor, options.sequence});
    for (const auto& entry : model.parameters().entries()) {
      const Shape& extents = entry.spec.shape;
      const auto row = static_cast<double>(extents.elements()) /
                       static_cast<double>(std::max<std::int64_t>(1, extents[0]));
      state.row_elements = std::max(state.row_elements, row);
    }
    state.elements = static_cast<double>(model.weight_count()) / shape.tensor;
    state.blocks = model.block_count() + 1;
    found = state_by_tensor_.emplace(shape.tensor, state).first;
  }
  const State& state = found->second;
  const parallel::ShardKind kind = options.shard;
  // A block is in one bucket at least; chunks, tied and frozen tensors have buckets of their own.
  const double buckets = 2 * state.blocks + 3.0 * shape.pipeline * options.pipeline_chunks,
               row_share = state.row_elements / state.elements;
  const auto part = [&](double bytes, bool is_shared) {
    return is_shared ? shared(bytes, shape, row_share, buckets) : bytes;
  };
  // 16-bit computation: 4 bytes of the master weights and 2 to 4 of the working ones for each
  // element. Otherwise they are one buffer.
  const bool has_masters = options.compute != DType::float32;
  double parameters = state.parameters;
  if (kind == parallel::ShardKind::parameters)
    parameters = options.offload.parameters ? 0 : part(parameters, true);
  else if (kind != parallel::ShardKind::none && has_masters)
    parameters = parameters / 3 + part(parameters / 2, true);
  const double gradients = part(state.gradients, kind == parallel::ShardKind::gradients ||
                                                     kind == parallel::ShardKind::parameters),
               optimizer = options.offload.optimizer
                               ? 0
                               : part(state.optimizer, kind != parallel::ShardKind::none);
  // The largest stage has at least the mean of all stages.
  return static_cast<std::int64_t>((parameters + gradients + optimizer) / shape.pipeline);
}

}  // namespace trireme::plan
