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

/// Returns the seconds of all sums and gathers of a group. They run one after the other.
double queue_seconds(const StepRecord& step, const std::string& group, const StepCosts& costs) {
  double sum = 0;
  for (const StepRecord::Call& call : step.calls) {
    const bool is_queued = call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter ||
                           call.kind == Kind::all_gather;
    if (is_queued && call.group.name() == group) sum += costs.request_seconds(call);
  }
  return sum;
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

double least_pipeline_seconds(double seconds, int stages, std::int64_t micro_batches) {
  const double others = 1 - 1 / static_cast<double>(micro_batches);
  return seconds / (1 - std::pow(others, stages));
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
    sums[micro_batches - 1] = queue_seconds(step, "tensor", costs);
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
                                                 shape.pipeline, options.accumulation);
}

double SearchBounds::recorded_seconds(const train::ReplicaOptions& options,
                                      const parallel::MeshShape& shape) {
  const std::tuple key{shape.tensor, options.micro, options.recompute, options.sequence};
  auto found = work_.find(key);
  if (found == work_.end())
    found = work_.emplace(key, record(machine_, options, shape.tensor, shape)).first;
  const StepWork& work = found->second;
  const double sums = work.tensor.least() * static_cast<double>(options.accumulation);
  return below_rounding *
         std::max({ideal_seconds(options, shape),
                   least_pipeline_seconds(work.ops.least(), shape.pipeline, options.accumulation),
                   sums / shape.pipeline, data_seconds(options, shape)});
}

double SearchBounds::data_seconds(const train::ReplicaOptions& options,
                                  const parallel::MeshShape& shape) {
  if (shape.data == 1) return 0;
  const std::tuple key{shape.tensor, shape.pipeline, options.pipeline_chunks, options.shard};
  if (const auto found = traffic_.find(key); found != traffic_.end()) return found->second;
  // Weights and gradients are those of every micro-batch, so the fewest do.
  train::ReplicaOptions few = options;
  few.recompute = 0;
  few.offload = {};
  few.accumulation = options.pipeline_chunks > 1 ? shape.pipeline : 1;
  few.global = few.micro * few.accumulation * shape.data;
  const StepCosts costs = costs_on(machine_, shape, options.tfloat32);
  double seconds = 0;
  for (const int stage : {0, shape.pipeline - 1}) {
    const int rank = parallel::rank_of(shape, {stage, 0, 0});
    const StepRecord step = record_step(few, shape, rank, device_);
    seconds = std::max(seconds, queue_seconds(step, "data", costs));
    if (shape.pipeline == 1) break;
  }
  return traffic_[key] = seconds;
}

std::int64_t SearchBounds::state_bytes(const train::ReplicaOptions& options,
                                       const parallel::MeshShape& shape) {
  auto found = states_.find(shape.tensor);
  if (found == states_.end()) {
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
    found = states_.emplace(shape.tensor, state).first;
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
