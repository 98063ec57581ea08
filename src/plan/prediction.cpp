// SPDX-License-Identifier: Apache-2.0
//
// Predicts a run on a machine: memory and records of each place, the simulated step, and what
// follows from its time.

#include "trireme/plan/prediction.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "trireme/plan/costs.hpp"
#include "trireme/plan/proof/call_record.hpp"
#include "trireme/train/model_flops.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/step/replica.hpp"
#include "trireme/train/step/stage_parameters.hpp"

namespace trireme::plan {
namespace {

/// Returns the work of the update rule on matrices by stage; zeros if it has none.
std::vector<train::MatrixWork> work_on_matrices(const train::ReplicaOptions& options,
                                                const parallel::MeshShape& shape,
                                                DeviceKind device) {
  std::vector<train::MatrixWork> stages(static_cast<std::size_t>(shape.pipeline));
  if (options.optimizer.rule->scope != optim::RuleScope::matrix) return stages;
  for (int stage = 0; stage < shape.pipeline; ++stage)
    stages[static_cast<std::size_t>(stage)] = train::matrix_work(options, shape, stage, device);
  return stages;
}

/// Returns the rank of a stage whose step is recorded: that of the most work on matrices.
int recorded_rank(const parallel::MeshShape& shape, int stage, const train::MatrixWork& matrices) {
  return parallel::rank_of(shape, {stage, matrices.busiest_rank, 0});
}

/// Plans the first and the last data and tensor rank of every stage. Others of a stage differ from
/// them by uneven rows only; where sharding keeps matrices whole, the ranks with most elements,
/// with the largest matrix and with most work are planned too. One is recorded.
std::vector<Place> plan_places(const train::ReplicaOptions& options,
                               const parallel::MeshShape& shape, DeviceKind device,
                               std::span<const train::MatrixWork> matrices) {
  std::vector<Place> places;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    const train::MatrixWork& work = matrices[static_cast<std::size_t>(stage)];
    const int first = parallel::rank_of(shape, {stage, 0, 0}),
              last = parallel::rank_of(shape, {stage, shape.data - 1, shape.tensor - 1}),
              fullest = parallel::rank_of(shape, {stage, work.fullest_rank, 0}),
              widest = parallel::rank_of(shape, {stage, work.widest_rank, 0}),
              recorded = recorded_rank(shape, stage, work);
    for (const int rank : std::set<int>{first, last, fullest, widest, recorded}) {
      Place place{.rank = rank,
                  .stage = stage,
                  .memory = train::Replica::measure(options, shape, rank, device),
                  .step = std::nullopt,
                  .traffic = {}};
      if (rank == recorded) {
        place.step = record_step(options, shape, rank, device);
        place.traffic = traffic_of(*place.step);
      }
      places.push_back(std::move(place));
    }
  }
  return places;
}

/// Returns the bytes of the tensors of a checkpoint. They do not depend on the layout: one rank
/// would write all of them.
std::int64_t checkpoint_bytes(train::ReplicaOptions options) {
  options.pipeline_chunks = 1;
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  train::Replica replica(options, Device{DeviceKind::meta, 0}, DeviceKind::cpu, {},
                         parallel::Mesh::meta({}, 0), engine);
  std::int64_t elements = 0;
  for (const checkpoint::TensorSlice& slice : slices_of(replica, train::Rows::share, true))
    elements += slice.spec->shape.elements();
  return elements * std::int64_t{sizeof(float)};
}

/// Tokens are stored in the narrowest type of their vocabulary, images as they are trained.
double stored_bytes_of_a_sample(const train::ReplicaOptions& options) {
  if (!options.tokens())
    return static_cast<double>(options.image.elements()) *
           static_cast<double>(size_of(options.pixel_type));
  const double token = options.outputs.count <= 1 << 8    ? 1
                       : options.outputs.count <= 1 << 16 ? 2
                                                          : 4;
  return token * static_cast<double>(options.context());
}

void add_costs_of_the_run(Prediction& run, const Machine& machine,
                          const train::ResolvedLayout& layout) {
  const double nodes = run.nodes;
  if (machine.file_system.write_bytes_per_s > 0)
    run.checkpoint_seconds =
        static_cast<double>(run.checkpoint_bytes) / (machine.file_system.write_bytes_per_s * nodes);
  const double mtbf = machine.reliability.node_mtbf_hours * 3600 / nodes;
  if (mtbf > 0 && run.checkpoint_seconds)
    run.checkpoint_interval_seconds = best_checkpoint_interval(*run.checkpoint_seconds, mtbf);
  if (layout.total_steps == 0 || !layout.scale.rows.empty()) return;
  run.run_seconds = static_cast<double>(layout.total_steps) * run.step_seconds;
  if (mtbf > 0) run.failures = *run.run_seconds / mtbf;
  if (machine.node.watts > 0) run.energy_joules = *run.run_seconds * machine.node.watts * nodes;
  if (machine.price.gpu_hour_usd > 0)
    run.cost_usd = *run.run_seconds / 3600 * machine.price.gpu_hour_usd * run.ranks;
}

}  // namespace

std::vector<const StepRecord*> Prediction::steps() const {
  std::vector<const StepRecord*> list;
  for (const Place& place : places)
    if (place.step) list.push_back(&*place.step);
  return list;
}

double peak_flops(const Machine& machine, const train::ReplicaOptions& options) {
  if (options.float8) return machine.peak.float8;
  if (options.compute == DType::bfloat16) return machine.peak.bfloat16;
  if (options.compute == DType::float16) return machine.peak.float16;
  return options.tfloat32 ? machine.peak.tfloat32 : machine.peak.float32;
}

std::int64_t bytes_of_rank(const Machine& machine, const train::MemoryPlan& plan) {
  const bool is_gpu = machine.device.kind == MachineKind::gpu;
  return plan.total() + (is_gpu ? 0 : plan.host_total()) + machine.overhead.reserved_bytes;
}

bool fits(const Machine& machine, std::int64_t bytes_of_a_rank, int ranks) {
  const std::int64_t sharing = machine.device.kind == MachineKind::gpu ? 1 : ranks;
  return bytes_of_a_rank <= machine.memory.bytes / sharing;
}

std::vector<Traffic> traffic_of(const StepRecord& record) {
  std::vector<Traffic> list;
  std::map<std::tuple<std::string, std::string_view, EngineKind>, std::size_t> numbers;
  for (std::size_t i = 0; i < record.events.size(); ++i) {
    if (record.events[i].kind != StepRecord::Event::Kind::call) continue;
    const StepRecord::Call& call = record.calls[record.events[i].index];
    if (call.kind == EngineKind::wait || call.kind == EngineKind::quiesce) continue;
    const auto [place, is_new] =
        numbers.try_emplace({call.group.name(), call.purpose.label, call.kind}, list.size());
    if (is_new)
      list.push_back({.group = call.group.name(),
                      .purpose = std::string(call.purpose.label),
                      .kind = name_of(kind_of(call.kind)),
                      .ranks = call.group.size()});
    Traffic& traffic = list[place->second];
    const std::int64_t times = record.times_of(i);
    traffic.requests += times;
    traffic.bytes += times * call.bytes;
    traffic.sent_bytes += static_cast<double>(times) * call.sent_bytes;
  }
  return list;
}

double best_checkpoint_interval(double checkpoint_seconds, double mtbf) {
  if (checkpoint_seconds >= 2 * mtbf) return mtbf;
  const double part = std::sqrt(checkpoint_seconds / (2 * mtbf));
  return std::sqrt(2 * checkpoint_seconds * mtbf) * (1 + part / 3 + part * part / 9) -
         checkpoint_seconds;
}

std::optional<ExpectedAccount> expect_account(const Prediction& run, const Machine& machine,
                                              const SavingTimes& saving) {
  const double mtbf = machine.reliability.node_mtbf_hours * 3600 / run.nodes;
  if (!run.run_seconds || mtbf == 0) return std::nullopt;
  ExpectedAccount account{.train = *run.run_seconds, .start = machine.reliability.start_seconds};
  const double interval = std::min(saving.interval, account.train),
               intervals = account.train / interval;
  account.checkpoint = intervals * saving.wait;
  // Nodes may fail at any time, at a restart too. The first start adds its own.
  const double wall = account.start + mtbf * std::exp(account.start / mtbf) *
                                          std::expm1((interval + saving.wait) / mtbf) * intervals;
  account.failures = wall / mtbf;
  account.restart = account.start > 0 ? account.failures * account.start : 0;
  account.repeated =
      std::max(0.0, wall - account.train - account.start - account.checkpoint - account.restart);
  return account;
}

ModelWork work_of_model(const train::ReplicaOptions& options) {
  return {.flops_of_a_sample = train::model_flops_of_a_sample(options),
          .checkpoint_bytes = checkpoint_bytes(options)};
}

double predict_step_seconds(train::ReplicaOptions options, const train::ResolvedLayout& layout,
                            DeviceKind device, const Machine& machine) {
  const parallel::MeshShape shape = layout.mesh_shape();
  options.chunk_bounds = train::chunk_bounds(options, shape.pipeline);
  const std::vector<train::MatrixWork> matrices = work_on_matrices(options, shape, device);
  std::vector<StepRecord> records;
  for (int stage = 0; stage < shape.pipeline; ++stage)
    records.push_back(record_step(
        options, shape, recorded_rank(shape, stage, matrices[static_cast<std::size_t>(stage)]),
        device));
  std::vector<const StepRecord*> steps;
  for (const StepRecord& record : records) steps.push_back(&record);
  return simulate(steps, costs_on(machine, shape, options.tfloat32)).seconds;
}

Prediction predict(const train::ReplicaOptions& given, const train::ResolvedLayout& layout,
                   DeviceKind device, const Machine& machine,
                   const std::optional<ModelWork>& work) {
  const parallel::MeshShape shape = layout.mesh_shape();
  const ModelWork of_model = work ? *work : work_of_model(given);
  train::ReplicaOptions options = given;
  options.chunk_bounds = train::chunk_bounds(options, shape.pipeline);
  Prediction run;
  run.ranks = layout.ranks();
  // 1. Memory and records.
  const std::vector<train::MatrixWork> matrices = work_on_matrices(options, shape, device);
  run.places = plan_places(options, shape, device, matrices);
  const std::vector<const StepRecord*> steps = run.steps();
  for (const StepRecord* step : steps)
    run.executed_flops += step->flops() * shape.data * shape.tensor;
  for (const train::MatrixWork& work_of_stage : matrices) {
    run.matrix_flops += work_of_stage.flops * shape.tensor;
    run.repeats_matrices |= work_of_stage.repeats;
    run.busiest_matrix_flops = std::max(run.busiest_matrix_flops, work_of_stage.busiest_flops);
    // The recorded rank stands for the others, of which some have less of this work.
    run.executed_flops +=
        (work_of_stage.flops - work_of_stage.busiest_flops * shape.data) * shape.tensor;
  }
  run.model_flops = of_model.flops_of_a_sample * static_cast<double>(layout.global);
  run.peak = peak_flops(machine, options);
  // 2. Time.
  run.nodes = nodes_of(machine, run.ranks);
  run.timeline = simulate(steps, costs_on(machine, shape, options.tfloat32));
  run.step_seconds = run.timeline.seconds;
  const double steps_per_s = 1 / run.step_seconds;
  run.samples_per_s = static_cast<double>(layout.global) * steps_per_s;
  if (options.tokens())
    run.tokens_per_s = run.samples_per_s * static_cast<double>(options.context());
  // All ranks of a tensor group read the same samples.
  run.read_bytes_per_s = run.samples_per_s * stored_bytes_of_a_sample(options) * shape.tensor;
  // 3. What follows from it.
  run.checkpoint_bytes = of_model.checkpoint_bytes;
  add_costs_of_the_run(run, machine, layout);
  return run;
}

}  // namespace trireme::plan
