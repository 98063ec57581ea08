// SPDX-License-Identifier: Apache-2.0
//
// One rank's replica: it makes the memory, the pipeline stage and the weight update, and holds what
// they share. measure() runs the same constructor and one step on the meta device to plan memory.
//
// Order of construction: schedule (it decides how many micro-batches are in flight), memory, stream
// and context, model, parameters of the stage, weight update, stage, status exchange.
#include "trireme/train/step/replica.hpp"

#include <numeric>

#include "trireme/checkpoint/background.hpp"
#include "trireme/train/run/run_state.hpp"

namespace trireme::train {
namespace {

/// Returns the number of micro-batches in flight, summed over the chunks of this rank.
int count_activations(const std::vector<parallel::PipelineAction>& schedule, int chunks) {
  const std::vector<int> in_flight = parallel::max_in_flight(schedule, chunks);
  return std::accumulate(in_flight.begin(), in_flight.end(), 0);
}

/// Calls the forward passes of generated text in the order of train::generate(), on meta. The last
/// cached position needs the most workspace of its kind.
void rehearse_generation(PipelineStage& stage, const ReplicaOptions::Generation& generation,
                         std::int64_t context) {
  const auto call = [&](std::int64_t rows, std::int64_t first) {
    stage.logits({nullptr, DType::int32, DeviceKind::meta, {1, rows}}, rows - 1, first);
  };
  call(generation.prompt_rows, 0);
  if (generation.cached_rows > generation.prompt_rows) call(1, generation.cached_rows - 1);
  if (generation.slides) call(context, 0);
}

}  // namespace

data::MicroBatch meta_batch(const ReplicaOptions& options) {
  data::MicroBatch batch;
  const Shape input = options.input_shape();
  batch.inputs = {nullptr, options.input_type(), DeviceKind::meta, input};
  batch.labels = {nullptr, options.label_type(), DeviceKind::meta,
                  Shape{options.micro * options.labels_per_sample()}};
  batch.valid_rows = options.micro;
  return batch;
}

Replica::Replica(const ReplicaOptions& options, Device device, DeviceKind target,
                 const MemoryPlan& plan, const parallel::Mesh& mesh, comm::Engine& engine)
    : options_(options),
      mesh_(mesh),
      engine_(engine),
      schedule_(parallel::pipeline_schedule(options.pipeline_schedule, mesh.shape.pipeline,
                                            mesh.coordinates.stage, options.pipeline_chunks,
                                            static_cast<int>(options.accumulation))),
      memory_(device, plan, count_activations(schedule_, options.pipeline_chunks),
              options.offload.activations),
      graphs_(options.graphs && !in_host_memory(device.kind)),
      compute_(device, graphs_, engine),
      state_copy_(memory_.host_checkpoint, compute_),
      context_(compute_, memory_.workspace, memory_.prepared_weights, ops::target_of(target),
               {.deterministic = options.deterministic,
                .tfloat32 = options.tfloat32,
                .float8 = options.float8,
                .fusions = options.fusions,
                .fused_softmax = options.fused_softmax,
                .joined_norms = options.joined_norms}),
      model_(options.model, options.input_shape(), options.outputs,
             {mesh.coordinates.tensor_rank, mesh.shape.tensor, options.sequence}),
      stage_parameters_(options_, model_, mesh_, context_.target()),
      tensor_group_(mesh.tensor, engine,
                    options.deterministic ? comm::SumOrder::tree : comm::SumOrder::library,
                    options.sequence, options.test_row_cut),
      batch_norm_group_(mesh.batch_norm, engine),
      resources_{options_,          mesh_,         engine_,           memory_, context_, model_,
                 stage_parameters_, tensor_group_, batch_norm_group_, target},
      weight_update_(resources_, state_copy_),
      stage_(resources_, schedule_, weight_update_),
      status_exchange_(mesh_, engine_, device, memory_.batches) {}

Replica::~Replica() {
  // Graphs and registrations with NCCL hold addresses in the arenas, so they go first.
  graphs_.clear();
  engine_.disconnect();
}

MemoryPlan Replica::measure(const ReplicaOptions& options, const parallel::MeshShape& shape,
                            int world_rank, DeviceKind target, const StepObserver& observer) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  Replica replica(options, Device{DeviceKind::meta, 0}, target, {},
                  parallel::Mesh::meta(shape, world_rank), engine);
  const data::MicroBatch batch = meta_batch(options);
  PipelineStage& stage = replica.stage();
  WeightUpdate& update = replica.weight_update();
  if (options.trains) {
    // Arenas grow no more in the steady state.
    const bool is_observed = observer.op || observer.request || observer.action;
    replica.rehearse_step(
        batch, observer,
        is_observed ? RehearsedMicroBatches::all : RehearsedMicroBatches::different);
    if (update.is_periodic()) update.average_replicas();
    if (options.async_checkpoints)
      checkpoint::allocate_background_memory(replica.memory_.host_checkpoint,
                                             slices_of(replica, Rows::share, true));
  }
  if (options.generation) {
    rehearse_generation(stage, *options.generation, options.context());
  } else {
    update.swap_ema();
    stage.evaluate(batch, 0, true);
    update.swap_ema();
  }
  return replica.peaks();
}

void Replica::rehearse(const ReplicaOptions& options, const parallel::MeshShape& shape,
                       int world_rank, DeviceKind target, std::span<const StepObserver> observers,
                       RehearsedMicroBatches micro_batches) {
  TRIREME_EXPECT(options.trains);
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  Replica replica(options, Device{DeviceKind::meta, 0}, target, {},
                  parallel::Mesh::meta(shape, world_rank), engine);
  const data::MicroBatch batch = meta_batch(options);
  for (const StepObserver& observer : observers)
    replica.rehearse_step(batch, observer, micro_batches);
}

void Replica::rehearse_step(const data::MicroBatch& batch, const StepObserver& observer,
                            RehearsedMicroBatches micro_batches) {
  context_.set_op_observer(observer.op);
  engine_.observe(observer.request, context_.target());
  begin_step();
  parallel::GradientReducer& reducer = weight_update_.reducer();
  parallel::ShortSchedule schedule;
  if (micro_batches == RehearsedMicroBatches::different && reducer.micro_batches_repeat())
    schedule =
        parallel::shorten(options_.pipeline_schedule, mesh_.shape.pipeline, mesh_.coordinates.stage,
                          options_.pipeline_chunks, static_cast<int>(options_.accumulation));
  else
    schedule.actions = stage_.schedule();
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const parallel::PipelineAction& action = schedule.actions[i];
    if (observer.action) observer.action(action);
    if (action.forward)
      stage_.forward(action, PipelineStage::takes_batch(action) ? &batch : nullptr);
    else
      stage_.backward(action);
    if (schedule.times == 1 || i + 1 != schedule.end) continue;
    reducer.leave_out(schedule.left_out);
    if (observer.repeat) observer.repeat(schedule);
  }
  if (observer.update) observer.update();
  post_status(0);
  weight_update_.finish_gradients();
  weight_update_.begin_update({.learning_rate = 0.1}, {});
  weight_update_.end_update();
  weight_update_.start_gather();
  engine_.observe({}, context_.target());
  context_.set_op_observer({});
}

void Replica::begin_step(bool measures_noise) {
  weight_update_.begin_step(measures_noise);
  stage_.begin_step();
}

void Replica::post_status(std::uint64_t stop_requests) {
  status_exchange_.post(context_, stage_.step_sums(), stop_requests,
                        weight_update_.finish_measurement());
}

}  // namespace trireme::train
