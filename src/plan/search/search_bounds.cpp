// SPDX-License-Identifier: Apache-2.0
//
// Lower bounds of time and memory for the search of layouts. docs/design/planning.md says why no
// layout needs less.
//
// Each bound is made of steps that are recorded once on the meta device with few micro-batches and
// without data ranks: their ops and requests are those that every layout has at least.
#include "search_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "trireme/base/expect.hpp"
#include "trireme/model/model.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/step_record.hpp"
#include "trireme/train/step/replica.hpp"
#include "trireme/train/step/stage_parameters.hpp"

namespace trireme::plan {
namespace {

using Event = StepRecord::Event;

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

/// Returns options of one stage that holds all of the model and all of its state.
train::ReplicaOptions undivided(train::ReplicaOptions options) {
  options.pipeline_schedule = parallel::PipelineKind::one_forward_one_backward;
  options.pipeline_chunks = 1;
  options.shard = parallel::ShardKind::none;
  options.offload = {};
  return options;
}

bool is_queued(const StepRecord::Call& call) {
  return call.kind == EngineKind::all_reduce || call.kind == EngineKind::reduce_scatter ||
         call.kind == EngineKind::all_gather;
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

/// Returns the seconds of a further micro-batch in the passes of a stage, with the waits for its
/// tensor group. Waits after the last op are not counted: others may run beside them. `options`,
/// `shape`: those of the layout, of which data ranks are left out.
double SearchBounds::pass_seconds(const Machine& machine, train::ReplicaOptions options,
                                  const parallel::MeshShape& shape, int stage) {
  // Costs depend on the ranks that share nodes and links, so they are those of the whole run.
  const StepCosts costs =
      costs_on(machine, {shape.ranks() / shape.tensor, shape.tensor, 1, 1}, options.tfloat32);
  const parallel::MeshShape alone{.data = 1, .tensor = shape.tensor, .pipeline = shape.pipeline};
  options.shard = parallel::ShardKind::none;
  options.offload = {};
  const int group = options.pipeline_chunks > 1 ? shape.pipeline : 1;
  double seconds[2];
  for (const int groups : {1, 2}) {
    options.accumulation = std::int64_t{groups} * group;
    options.global = options.accumulation * options.micro;
    const StepRecord step = record_step(options, alone, parallel::rank_of(alone, {stage, 0, 0}),
                                        device_, train::RehearsedMicroBatches::all);
    seconds[groups - 1] =
        replay_of(step, costs, 0, begin_of_end(step), "tensor", true).least_end(0);
  }
  // Some ops run once in a step, so the first micro-batches take longer; or they store what others
  // add to.
  return std::min(seconds[0], seconds[1] - seconds[0]) / group;
}

double SearchBounds::ideal_seconds(const train::ReplicaOptions& options,
                                   const parallel::MeshShape& shape) {
  auto found = ideal_passes_.find(options.recompute);
  if (found == ideal_passes_.end()) {
    // The largest micro-batch reads the weights least often for each sample.
    train::ReplicaOptions whole = undivided(options);
    whole.micro = max_micro_;
    whole.sequence = false;
    found = ideal_passes_
                .emplace(options.recompute, pass_seconds(ideal_, whole, {.data = shape.ranks()}, 0))
                .first;
  }
  const double part = static_cast<double>(options.micro) / static_cast<double>(max_micro_);
  return below_rounding * least_pipeline_seconds(found->second * part / shape.tensor,
                                                 shape.pipeline, options.pipeline_chunks,
                                                 options.accumulation);
}

/// Returns the seconds of a micro-batch on one stage that holds all of the model.
double SearchBounds::micro_batch_seconds(const train::ReplicaOptions& options,
                                         const parallel::MeshShape& shape) {
  const std::tuple key{shape.tensor, options.micro, options.recompute, options.sequence};
  auto found = passes_.find(key);
  if (found == passes_.end())
    found = passes_
                .emplace(
                    key,
                    pass_seconds(machine_, undivided(options),
                                 {.data = shape.ranks() / shape.tensor, .tensor = shape.tensor}, 0))
                .first;
  return found->second;
}

double SearchBounds::recorded_seconds(const train::ReplicaOptions& options,
                                      const parallel::MeshShape& shape) {
  const double passes = least_pipeline_seconds(micro_batch_seconds(options, shape), shape.pipeline,
                                               options.pipeline_chunks, options.accumulation);
  return std::max(ideal_seconds(options, shape), with_end(passes, options, shape));
}

/// Returns pass_seconds() of every stage. Stages in the middle that have the same blocks, of which
/// the same ones are recomputed, do the same.
std::vector<double> SearchBounds::stage_seconds(train::ReplicaOptions options,
                                                const parallel::MeshShape& shape) {
  options.chunk_bounds = train::chunk_bounds(options, shape.pipeline);
  const model::Model model(options.model, options.input_shape(), options.outputs,
                           {0, shape.tensor, options.sequence});
  const std::vector<int> kinds = train::block_kinds(options, model);
  // Kinds of the blocks of a stage, with a mark behind each chunk.
  std::map<std::vector<int>, double> known;
  std::vector<double> seconds;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    std::vector<int> key{stage == 0 ? 1 : stage == shape.pipeline - 1 ? 2 : 0};
    for (int chunk = stage; chunk + 1 < std::ssize(options.chunk_bounds); chunk += shape.pipeline) {
      const auto at = static_cast<std::size_t>(chunk);
      for (int block = options.chunk_bounds[at]; block < options.chunk_bounds[at + 1]; ++block) {
        const int kind = kinds[static_cast<std::size_t>(block)];
        key.push_back(2 * kind + (options.is_recomputed(block) ? 1 : 0));
      }
      key.push_back(-1);
    }
    const auto [place, is_new] = known.try_emplace(std::move(key), 0);
    if (is_new) place->second = pass_seconds(machine_, options, shape, stage);
    seconds.push_back(place->second);
  }
  return seconds;
}

double SearchBounds::staged_seconds(const train::ReplicaOptions& options,
                                    const parallel::MeshShape& shape) {
  if (shape.pipeline == 1) return recorded_seconds(options, shape);
  std::vector<double>& stages =
      stage_passes_[{shape.tensor, shape.pipeline, options.pipeline_chunks, options.micro,
                     options.recompute, options.sequence}];
  if (stages.empty()) stages = stage_seconds(options, shape);
  double passes = 0, before = 0;
  for (const double stage : stages) {
    passes = std::max(passes, static_cast<double>(options.accumulation) * stage + before);
    if (options.pipeline_chunks == 1) before += stage;
  }
  return std::max(recorded_seconds(options, shape), with_end(passes, options, shape));
}

/// Returns a bound of the step if all passes of the first stage end after `passes`.
double SearchBounds::with_end(double passes, const train::ReplicaOptions& options,
                              const parallel::MeshShape& shape) {
  const std::tuple key{shape.tensor, shape.pipeline, options.pipeline_chunks, options.shard};
  auto found = step_ends_.find(key);
  if (found == step_ends_.end()) {
    StepEnds ends{.first = record_end(options, shape, 0), .last = {}};
    ends.last = shape.pipeline == 1 ? ends.first : record_end(options, shape, shape.pipeline - 1);
    found = step_ends_.emplace(key, std::move(ends)).first;
  }
  const StepEnds& ends = found->second;
  double seconds = std::max({passes, ends.first.first_queue, ends.last.first_queue});
  // Stages that do not wait for each other may end the step at different times.
  if (shape.pipeline == 1)
    seconds = ends.first.least_end(passes);
  else if (ends.first.synchronizes && ends.last.synchronizes)
    seconds = std::max(ends.first.least_end(passes), ends.last.least_end(0));
  return below_rounding * seconds;
}

SearchBounds::Replay SearchBounds::record_end(const train::ReplicaOptions& options,
                                              const parallel::MeshShape& shape, int stage) {
  // Requests of the data group are those of every micro-batch, so the fewest do.
  train::ReplicaOptions few = options;
  few.recompute = 0;
  few.offload = {};
  few.accumulation = options.pipeline_chunks > 1 ? shape.pipeline : 1;
  few.global = few.micro * few.accumulation * shape.data;
  const StepRecord step = record_step(few, shape, parallel::rank_of(shape, {stage, 0, 0}), device_,
                                      train::RehearsedMicroBatches::all);
  return replay_of(step, costs_on(machine_, shape, options.tfloat32), begin_of_end(step),
                   step.events.size(), "data", false);
}

/// Returns the events [begin, end) of a step. Queue 0 is that of `group`, with its requests in
/// front of `begin`; `is_alone`: other groups are left out.
SearchBounds::Replay SearchBounds::replay_of(const StepRecord& step, const StepCosts& costs,
                                             std::size_t begin, std::size_t end,
                                             const std::string& group, bool is_alone) {
  TRIREME_EXPECT(step.repeat.times == 1);
  std::vector<double> op_seconds;
  for (const ops::OpCall& op : step.ops) op_seconds.push_back(costs.op_seconds(op));
  Replay replay;
  std::map<std::string, int> queues{{group, 0}};
  std::map<std::int64_t, double> earlier;      // least ends of requests in front of `begin`
  std::map<std::int64_t, std::string> groups;  // of the other requests
  using Replayed = Replay::Event::Kind;
  for (std::size_t i = 0; i < end; ++i) {
    const Event& event = step.events[i];
    if (event.kind == Event::Kind::op && i >= begin)
      replay.events.push_back({Replayed::op, op_seconds[event.index]});
    if (event.kind != Event::Kind::call) continue;
    const StepRecord::Call& call = step.calls[event.index];
    const std::string& name = call.group.name();
    if (is_queued(call) && (name == group || (!is_alone && i >= begin))) {
      const double seconds = costs.request_seconds(call);
      if (i < begin) {
        earlier[call.number] = replay.first_queue += seconds;
        continue;
      }
      const int queue = queues.try_emplace(name, static_cast<int>(queues.size())).first->second;
      replay.events.push_back({Replayed::submit, seconds, queue, call.number});
      groups[call.number] = name;
    } else if (i >= begin && call.kind == EngineKind::quiesce) {
      replay.events.push_back({Replayed::wait_for_all});
    } else if (i >= begin && call.kind == EngineKind::wait) {
      const auto known = earlier.find(call.number);
      const auto here = groups.find(call.number);
      if (known == earlier.end() && here == groups.end()) continue;
      replay.events.push_back(
          {Replayed::wait, known == earlier.end() ? 0 : known->second, 0, call.number});
      if (here != groups.end() && (here->second == "world" || here->second == "model"))
        replay.synchronizes = true;
    }
  }
  replay.queues = static_cast<int>(queues.size());
  return replay;
}

double SearchBounds::Replay::least_end(double seconds) const {
  double clock = seconds;
  std::vector<double> free(static_cast<std::size_t>(queues), 0.0);
  free[0] = first_queue;
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
    train::ReplicaOptions whole = undivided(options);
    whole.accumulation = 1;
    whole.global = whole.micro;
    whole.recompute = 1;
    const train::MemoryPlan plan =
        train::Replica::measure(whole, {.data = 1, .tensor = shape.tensor}, 0, device_);
    State state{.parameters = static_cast<double>(plan.parameters),
                .gradients = static_cast<double>(plan.gradients),
                .optimizer = static_cast<double>(plan.optimizer)};
    const model::Model model(options.model, options.input_shape(), options.outputs,
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
