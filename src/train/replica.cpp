// One rank's replica: memory (arenas), the pipeline stage (forward, backward, messages to
// neighbors) and the update (reducer, optimizer, averages).
//
// The constructor builds all three from a memory plan. measure() runs the same constructor and one
// step on the meta device to obtain that plan. StepPipeline calls begin_step(), forward() and
// backward() per action, and post_status(); evaluate() and generate() use the forward path alone.
#include "trireme/train/replica.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "batch_uploader.hpp"
#include "block_costs.hpp"
#include "chunk.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/train/run_state.hpp"
#include "trireme/train/status_exchange.hpp"

namespace trireme::train {
namespace {

/// Device of offloaded tensors.
Device host_of(Device device) {
  return device.kind == DeviceKind::meta ? device : Device{DeviceKind::cpu, 0};
}
Pages host_pages(Device device) {
  return in_host_memory(device.kind) ? Pages::pageable : Pages::pinned;
}

/// Returns the elements copied from host memory at a time: as many as are reduced at a time.
std::int64_t window_elements(const ReplicaOptions& options) {
  const bool nothing_offloaded = !options.offload.optimizer && !options.offload.parameters;
  return nothing_offloaded
             ? 0
             : std::max<std::int64_t>(1, options.bucket_bytes / size_of(DType::float32));
}

/// Gradients up to this size are always summed in tree order, for reproducibility across layouts.
///
/// The buffers are small beside the activations, and between a power of two of ranks the tree sends
/// no more than a ring. Any other order changes last bits, and one of them eventually switches a
/// ReLU on or off. From then on, small networks with batch norm diverge by a factor of about 3 per
/// step.
constexpr std::int64_t max_ordered_bytes = std::int64_t{128} << 20;

/// Returns whether sums use tree order. Sharded gradients have no buffers for the levels of the
/// tree, so for them only the deck decides.
bool uses_tree_order(const ReplicaOptions& options, const parallel::FlatLayout& layout,
                     int data_size) {
  const bool cheap = layout.elements() * size_of(DType::float32) <= max_ordered_bytes &&
                     std::has_single_bit(static_cast<unsigned>(data_size)) &&
                     options.shard <= parallel::ShardKind::optimizer;
  return options.deterministic || (options.trains && cheap);
}

ops::ImagePreparation preparation_of(const data::AugmentOptions& augment) {
  ops::ImagePreparation preparation;
  for (std::size_t c = 0; c < augment.mean.size() && c < 4; ++c) {
    preparation.mean[c] = static_cast<float>(augment.mean[c]);
    preparation.inverse_std[c] = static_cast<float>(1.0 / augment.std[c]);
  }
  return preparation;
}

/// Returns the first block of each chunk of the model, and the end: stages * chunks + 1 bounds.
std::vector<int> chunk_bounds(const ReplicaOptions& options, const model::Model& model,
                              const parallel::MeshShape& shape) {
  const int chunks = shape.pipeline * options.pipeline_chunks;
  if (chunks == 1) return {0, model.block_count()};
  return parallel::balance_chunks(block_costs(options), chunks);
}

/// Returns which tensors this rank counts in norms and checkpoints. Duplicated tensors are counted
/// once: by tensor rank 0 if replicated over the tensor group, by the owner's stage if tied.
std::vector<char> counted_tensors(const parallel::ParameterList& list,
                                  const parallel::ParameterList& whole, int tensor_rank) {
  std::vector<char> counted;
  for (const parallel::ParameterList::Entry& entry : list.entries()) {
    const auto& owner = whole.entries()[static_cast<std::size_t>(whole.find(entry.spec.name))];
    counted.push_back(
        entry.block == owner.block && (tensor_rank == 0 || !entry.partition.replicated()) ? 1 : 0);
  }
  return counted;
}

/// Returns the information for norms over the whole model: groups, global tensor indices, counted
/// tensors.
optim::NormScope norm_groups(const parallel::Mesh& mesh, const parallel::ParameterList& list,
                             const parallel::ParameterList& whole, const std::vector<char>& counted,
                             comm::Engine& engine) {
  optim::NormScope groups{.model = mesh.model,
                          .global_index = {},
                          .tensor_count = static_cast<int>(whole.entries().size()),
                          .counted = counted,
                          .engine = &engine};
  for (const parallel::ParameterList::Entry& entry : list.entries())
    groups.global_index.push_back(whole.find(entry.spec.name));
  return groups;
}

/// Returns the data ranks whose gradients are summed in each step; a group of one for sync
/// periodic.
comm::Communicator gradient_group(const ReplicaOptions& options, const parallel::Mesh& mesh) {
  if (options.sync == parallel::SyncKind::periodic) return {};
  return options.sync == parallel::SyncKind::delayed ? mesh.delayed_data : mesh.data;
}

/// Returns the parameters of this rank's chunks; the head belongs to the last block.
parallel::ParameterList declare_parameters(const model::Model& model,
                                           const std::vector<int>& bounds,
                                           const ReplicaOptions& options,
                                           const parallel::Mesh& mesh) {
  parallel::ParameterList list(mesh.coordinates.tensor_rank, mesh.shape.tensor);
  for (int c = 0; c < options.pipeline_chunks; ++c) {
    const auto number = static_cast<std::size_t>(c * mesh.shape.pipeline + mesh.coordinates.stage);
    const int end = bounds[number + 1];
    model.declare(list, bounds[number], end == model.block_count() ? end + 1 : end);
  }
  return list;
}

}  // namespace

Shape ReplicaOptions::input_shape() const {
  if (tokens()) return {micro, model.gpt.context};
  return {micro, image[0], image[1], image[2]};
}

std::int64_t MemoryPlan::all_activations() const {
  return std::accumulate(
      activations.begin(), activations.end(),
      offload_windows[0] + offload_windows[1] + recompute + boundary + ping_pong[0] + ping_pong[1]);
}
std::int64_t MemoryPlan::total() const {
  return parameters + gradients + optimizer + all_activations() + workspace + prepared_weights +
         batches;
}
std::int64_t MemoryPlan::host_total() const {
  return host_parameters + host_optimizer + host_activations + host_checkpoint;
}

Replica::~Replica() {
  graphs_.clear();
  engine_.disconnect();
}

Replica::Replica(const ReplicaOptions& options, Device device, DeviceKind target,
                 const MemoryPlan& plan, const parallel::Mesh& mesh, comm::Engine& engine)
    : options_(options),
      mesh_(mesh),
      gradient_group_(gradient_group(options, mesh)),
      engine_(engine),
      parameters_(device, "parameters", plan.parameters),
      gradients_(device, "gradients", plan.gradients),
      optimizer_state_(device, "optimizer state", plan.optimizer),
      recompute_(device, "recomputed activations", plan.recompute),
      boundary_(device, "stage boundaries", plan.boundary),
      ping_pong_arenas_{Arena(device, "flow 0", plan.ping_pong[0]),
                        Arena(device, "flow 1", plan.ping_pong[1])},
      workspace_(device, "workspace", plan.workspace),
      prepared_weights_(device, "prepared weights", plan.prepared_weights),
      batches_(device, "batches", plan.batches),
      host_parameters_(host_of(device), "host parameters", plan.host_parameters,
                       host_pages(device)),
      host_optimizer_state_(host_of(device), "host optimizer state", plan.host_optimizer,
                            host_pages(device)),
      host_checkpoint_(host_of(device), "checkpoint being written", plan.host_checkpoint,
                       host_pages(device)),
      graphs_(options.graphs && !in_host_memory(device.kind)),
      compute_(device, OwnedStream::Priority::normal, &graphs_),
      state_copy_(host_checkpoint_, compute_),
      context_(compute_, workspace_, prepared_weights_, ops::target_of(target),
               {.deterministic = options.deterministic,
                .tfloat32 = options.tfloat32,
                .float8 = options.float8}),
      model_(options.model, options.input_shape(), options.classes,
             {mesh.coordinates.tensor_rank, mesh.shape.tensor, options.sequence}),
      schedule_(parallel::pipeline_schedule(options.pipeline_schedule, mesh.shape.pipeline,
                                            mesh.coordinates.stage, options.pipeline_chunks,
                                            static_cast<int>(options.accumulation))),
      tensor_group_(mesh.tensor, engine,
                    options.deterministic ? comm::SumOrder::tree : comm::SumOrder::library,
                    options.sequence, options.row_cut),
      ping_pong_(ping_pong_arenas_[0], ping_pong_arenas_[1]),
      preparation_(preparation_of(options.augment)),
      sums_(batches_.allocate(
          DType::float64,
          {std::max<std::int64_t>(options.accumulation, max_unread_micro_batches), 4})),
      statistic_scale_(static_cast<float>(
          1.0 / (static_cast<double>(options.accumulation) * gradient_group_.size()))) {
  // 1. The members above took the arenas of the plan and created the stream, context, model and
  //    schedule.
  engine_.attach_device(compute_);
  // 2. Assign blocks to chunks; declare the parameters of this stage and lay them out in flat
  //    buffers.
  const std::vector<int> bounds = chunk_bounds(options, model_, mesh.shape);
  const std::vector<int> slots = parallel::max_in_flight(schedule_, options.pipeline_chunks);
  parameter_list_ = declare_parameters(model_, bounds, options, mesh);
  std::vector<int> begins;
  for (int c = 0; c < options.pipeline_chunks; ++c)
    begins.push_back(
        bounds[static_cast<std::size_t>(c * mesh.shape.pipeline + mesh.coordinates.stage)]);
  layout_ = parallel::FlatLayout(
      parameter_list_, options.shard == parallel::ShardKind::parameters ? 0 : options.bucket_bytes,
      options.compute, begins);
  counted_ = counted_tensors(parameter_list_, model_.parameters(), mesh.coordinates.tensor_rank);
  // 3. Update: weights, gradient reducer, optimizer, and the periodic average if replicas run
  //    apart.
  const parallel::StateMemory parameters(
      parameters_, options.offload.parameters ? &host_parameters_ : nullptr, target);
  const parallel::StateMemory state(
      optimizer_state_, options.offload.optimizer ? &host_optimizer_state_ : nullptr, target);
  const bool periodic = options.trains && options.sync == parallel::SyncKind::periodic;
  const comm::Communicator data = periodic ? comm::Communicator() : mesh.data;
  store_ = std::make_unique<parallel::ParameterStore>(
      parameter_list_, layout_,
      parallel::Sharding{options.shard, data, &engine, window_elements(options)}, parameters,
      gradients_);
  reducer_ = std::make_unique<parallel::GradientReducer>(
      *store_,
      parallel::GradientReducer::Groups{
          .data = gradient_group_, .tied_group = mesh.tied_group, .tensor = &tensor_group_},
      engine,
      parallel::GradientReducer::Options{
          .micro_batches = options.accumulation,
          .deterministic = uses_tree_order(options, layout_, gradient_group_.size()),
          .delayed = options.trains && options.sync == parallel::SyncKind::delayed,
          .transfer_type = options.reduce == DType::bfloat16 ? comm::TransferType::bfloat16
                                                             : comm::TransferType::float32},
      gradients_);
  optimizer_ = std::make_unique<optim::Optimizer>(
      options.optimizer, *store_,
      norm_groups(mesh, parameter_list_, model_.parameters(), counted_, engine), state,
      options.loss_scale);
  if (periodic) {
    average_ = std::make_unique<parallel::PeriodicAverage>(
        *store_, optimizer_->state_buffers(), mesh.data, engine,
        parallel::PeriodicAverage::Options{
            .outer_momentum = options.outer_momentum,
            .deterministic = uses_tree_order(options, layout_, mesh.data.size())},
        optimizer_state_);
  }

  // 4. Stage: chunks with memory for each of their micro-batches in flight, and buffers for
  //    messages.
  const model::StageResources surroundings{context_, *store_, tensor_group_, ping_pong_,
                                           options.seed};
  if (options.offload.activations)
    offload_windows_ = std::make_unique<OffloadWindows>(
        device, plan.offload_windows, host_of(device), plan.host_activations, host_pages(device));
  std::size_t planned = 0;
  std::int64_t max_elements = 0;  // Largest number of elements in a message between stages.
  for (int c = 0; c < options.pipeline_chunks; ++c) {
    const int number = c * mesh.shape.pipeline + mesh.coordinates.stage;
    const int begin = bounds[static_cast<std::size_t>(number)],
              end = bounds[static_cast<std::size_t>(number) + 1];
    chunks_.push_back(std::make_unique<Chunk>(model_, number, begin, end, options, recompute_));
    for (int slot = 0; slot < slots[static_cast<std::size_t>(c)]; ++slot, ++planned) {
      chunks_.back()->add_slot(surroundings, device,
                               planned < plan.activations.size() ? plan.activations[planned] : 0,
                               offload_windows_.get());
    }
    if (begin > 0)
      max_elements = std::max(max_elements, model_.block_input_shape(begin).elements());
    if (end < model_.block_count())
      max_elements = std::max(max_elements, model_.block_input_shape(end).elements());
  }
  if (max_elements > 0) {
    for (Tensor* buffer : {&incoming_, &outgoing_[0], &outgoing_[1]})
      *buffer = boundary_.allocate(options.compute, {max_elements});
  }
  // 5. Upload of micro-batches, and the status exchange.
  uploader_ = std::make_unique<BatchUploader>(options, device, !in_host_memory(target),
                                              mesh.coordinates.stage == 0, slots[0], batches_);
  status_exchange_ = std::make_unique<StatusExchange>(mesh_, engine_, device, batches_);
}

MemoryPlan Replica::measure(const ReplicaOptions& options, const parallel::MeshShape& shape,
                            int world_rank, DeviceKind target) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  Replica replica(options, Device{DeviceKind::meta, 0}, target, {},
                  parallel::Mesh::meta(shape, world_rank), engine);
  data::MicroBatch batch;
  const Shape input = options.input_shape();
  batch.inputs = {nullptr, options.tokens() ? DType::int32 : DType::uint8, DeviceKind::meta, input};
  batch.labels = {nullptr, DType::int32, DeviceKind::meta,
                  options.tokens() ? input : Shape{options.micro}};
  batch.valid_rows = options.micro;
  // One training step with every part that allocates memory.
  if (options.trains) {
    replica.begin_step();
    for (const parallel::PipelineAction& action : replica.schedule_) {
      if (action.forward)
        replica.forward(action, takes_batch(action) ? &batch : nullptr);
      else
        replica.backward(action);
    }
    replica.post_status(0, 0);
    replica.reducer_->finish(replica.context_);
    replica.optimizer_->step(replica.context_, 0.1, true);
    replica.store_->start_gather(replica.context_);
    if (replica.average_ != nullptr) replica.average_->average(replica.context_);
    if (options.async_checkpoints)
      checkpoint::allocate_background_memory(replica.host_checkpoint_,
                                             slices_of(replica, Rows::share, true));
  }
  replica.swap_ema();
  replica.evaluate(batch, 0);
  replica.swap_ema();
  return replica.peaks();
}

void Replica::initialize(std::uint64_t seed) {
  store_->initialize(context_, seed);
  optimizer_->start_ema(context_);
}

void Replica::swap_ema() {
  if (!optimizer_->ema().defined()) return;
  engine_.quiesce();  // Gathers of working weights may still be in flight.
  state_copy_.wait_before_update();
  optimizer_->swap_ema(context_);
  store_->refresh_working(context_);
}

MemoryPlan Replica::peaks() const {
  MemoryPlan plan;
  plan.parameters = parameters_.peak_bytes();
  plan.gradients = gradients_.peak_bytes();
  plan.optimizer = optimizer_state_.peak_bytes();
  for (const std::unique_ptr<Chunk>& chunk : chunks_) {
    for (const auto& slot : chunk->slots())
      plan.activations.push_back(slot->activations.peak_bytes());
  }
  plan.recompute = recompute_.peak_bytes();
  plan.boundary = boundary_.peak_bytes();
  plan.ping_pong[0] = ping_pong_arenas_[0].peak_bytes();
  plan.ping_pong[1] = ping_pong_arenas_[1].peak_bytes();
  if (offload_windows_ != nullptr) {
    for (int window = 0; window < OffloadWindows::count; ++window)
      plan.offload_windows[window] = offload_windows_->peak_bytes(window);
    plan.host_activations = offload_windows_->host_peak_bytes();
  }
  plan.workspace = workspace_.peak_bytes();
  plan.prepared_weights = prepared_weights_.peak_bytes();
  plan.host_parameters = host_parameters_.peak_bytes();
  plan.host_optimizer = host_optimizer_state_.peak_bytes();
  plan.host_checkpoint = host_checkpoint_.peak_bytes();
  plan.batches = batches_.peak_bytes();
  return plan;
}

/// Returns the input of the first block for the latest upload, in memory of the pass: images in
/// compute precision, or token numbers.
Tensor Replica::prepare_input(model::MicroBatchPass& pass) {
  const BatchUploader::Inputs& from = uploader_->inputs();
  const Tensor x =
      pass.activation(options_.tokens() ? DType::int32 : options_.compute, from.values.shape);
  if (options_.tokens())
    ops::copy(context_, from.values, x);
  else
    ops::prepare_images(context_, preparation_, from.values, from.transforms, x);
  uploader_->release_inputs(compute_);
  return x;
}

namespace {

/// Message tags encode the receiving chunk and the direction. Messages with the same tag arrive in
/// the order of micro-batches.
int tag_of(int receiving_chunk, bool forward) { return 2 * receiving_chunk + (forward ? 1 : 0); }

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data), static_cast<std::size_t>(tensor.bytes())};
}

}  // namespace

comm::Engine::Connections Replica::connections() const {
  comm::Engine::Connections connections{
      .groups = {mesh_.world, mesh_.data, mesh_.tensor, mesh_.model},
      .messages = mesh_.pipeline,
      .routes = {}};
  if (options_.sync == parallel::SyncKind::delayed)
    connections.groups.push_back(mesh_.delayed_data);
  if (mesh_.shape.pipeline == 1) return connections;
  connections.groups.push_back(mesh_.tied_group);
  // A lane holds all messages from one stage to its neighbor, in the order of sending, for all
  // chunks.
  const int stages = mesh_.shape.pipeline, ends = stages * options_.pipeline_chunks - 1;
  for (int stage = 0; stage < std::min(stages, ends); ++stage) {
    const int next = (stage + 1) % stages;
    comm::Engine::MessageRoute forward{.from = stage, .to = next, .tags = {}},
        backward{.from = next, .to = stage, .tags = {}};
    for (int chunk = stage; chunk < ends; chunk += stages) {
      forward.tags.push_back(tag_of(chunk + 1, true));
      backward.tags.push_back(tag_of(chunk, false));
    }
    connections.routes.push_back(std::move(forward));
    connections.routes.push_back(std::move(backward));
  }
  return connections;
}

/// Receives the input of chunk `chunk` from the previous chunk (forward), or its output gradient
/// from the next one. Waits for the message.
Tensor Replica::receive(const Tensor& into, int chunk, bool forward) {
  const int from = forward ? chunk - 1 : chunk + 1;
  engine_.wait(engine_.receive(
      mesh_.pipeline, bytes_of(into), from % mesh_.shape.pipeline, tag_of(chunk, forward),
      forward ? "trireme/train/receive_activation" : "trireme/train/receive_gradient"));
  return into;
}

/// Sends the output of chunk `chunk` to the next chunk (forward), or its input gradient to the
/// previous one. The memory must not change until the request is done.
comm::Engine::Request Replica::send(const Tensor& tensor, int chunk, bool forward) {
  const int to = forward ? chunk + 1 : chunk - 1;
  return engine_.send(mesh_.pipeline, bytes_of(tensor), to % mesh_.shape.pipeline,
                      tag_of(to, forward),
                      forward ? "trireme/train/send_activation" : "trireme/train/send_gradient");
}

/// Copies a tensor and sends the copy, for tensors whose memory the next block reuses.
comm::Engine::Request Replica::send_copy(const Tensor& tensor, int chunk, bool forward) {
  outgoing_index_ = 1 - outgoing_index_;
  comm::Engine::Request& sent = outgoing_requests_[outgoing_index_];
  engine_.wait(sent);
  Tensor copy = outgoing_[outgoing_index_];
  copy.shape = tensor.shape;
  ops::copy(context_, tensor, copy);
  return sent = send(copy, chunk, forward);
}

void Replica::begin_step() {
  reducer_->begin_step(optimizer_->loss_scale().scale);
  uploader_->begin_step();
  // An evaluation in between may have advanced the buffer index. It is reset so that launches
  // repeat those of earlier steps and CUDA graphs can be replayed.
  outgoing_index_ = 0;
  if (options_.float8) store_->weights_changed();
}

void Replica::forward(const parallel::PipelineAction& action, const data::MicroBatch* batch) {
  Chunk& here = chunk(action);
  Chunk::MicroBatchSlot& slot = here.slot(action.micro_batch);
  // The previous output in this slot must have been sent before it is overwritten.
  engine_.wait(slot.send_request);
  if (batch != nullptr) uploader_->upload(compute_, *batch, action.micro_batch);
  slot.pass.begin_forward(true, uploader_->retained(action.micro_batch).keys());
  slot.begin_part(0);
  const Tensor x =
      here.first()
          ? prepare_input(slot.pass)
          : receive(slot.pass.activation(options_.compute, model_.block_input_shape(here.begin())),
                    here.number(), true);
  slot.output = here.forward(slot, x);
  if (!here.last())
    slot.send_request =
        send(slot.activation_store.copy_for_send(context_, slot.output), here.number(), true);
}

void Replica::backward(const parallel::PipelineAction& action) {
  Chunk& here = chunk(action);
  Chunk::MicroBatchSlot& slot = here.slot(action.micro_batch);
  model::MicroBatchPass& pass = slot.pass;
  const int end = here.last() ? here.end() + 1 : here.end();
  pass.begin_backward(reducer_->begin_backward(context_, here.begin(), end), statistic_scale_);
  Tensor dy;
  if (here.last()) {
    // Each sample (token) has weight 1 / N, where N counts those of the whole step (periodic: of
    // this replica). Gradients of micro-batches and replicas are then simply added. The loss scale
    // is divided out where the update is decided.
    const std::int64_t samples = options_.global * gradient_group_.size() / mesh_.shape.data;
    const model::LossSettings scale{
        static_cast<float>(options_.loss.label_smoothing),
        gradient_factor_ *
            static_cast<float>(reducer_->scale() /
                               static_cast<double>(samples * options_.labels_per_sample()))};
    store_->acquire(context_, here.end(), here.end() - 1);
    reducer_->block_begins(context_, here.end());
    slot.activation_store.acquire(context_, here.parts() - 1);
    pass.enter_block();
    dy = model_.head().loss(pass, slot.output, uploader_->retained(action.micro_batch).labels,
                            scale, sums_of(action.micro_batch));
    reducer_->block_done(context_, here.end());
  } else {
    dy = incoming_;
    dy.shape = model_.block_input_shape(here.end());
    receive(dy, here.number(), false);
  }
  // The input gradient is in memory that the next backward reuses, so a copy is sent.
  const Tensor dx = here.backward(slot, dy, *reducer_);
  if (!here.first()) send_copy(dx, here.number(), false);
}

void Replica::evaluate(const data::MicroBatch& batch, int number) {
  TRIREME_EXPECT(number < max_unread_micro_batches);
  uploader_->upload(compute_, batch, number);
  for (const std::unique_ptr<Chunk>& here : chunks_) {
    model::MicroBatchPass& pass = here->slot(0).pass;
    engine_.wait(here->slot(0).send_request);  // A message of the last training step.
    pass.begin_forward(false, nullptr);
    const Tensor x =
        here->first()
            ? prepare_input(pass)
            : receive(pass.activation(options_.compute, model_.block_input_shape(here->begin())),
                      here->number(), true);
    const Tensor y = here->forward(here->slot(0), x);
    if (!here->last()) {
      send_copy(y, here->number(), true);
      continue;
    }
    store_->acquire(context_, here->end(), -1);
    pass.enter_block();
    const model::LossSettings scale{static_cast<float>(options_.loss.label_smoothing), 0};
    model_.head().loss(pass, y, uploader_->retained(number).labels, scale, sums_of(number));
  }
}

Tensor Replica::logits(const Tensor& tokens, std::int64_t row) {
  TRIREME_EXPECT(mesh_.shape.pipeline == 1 && chunks_.size() == 1);
  Chunk& all = *chunks_[0];
  model::MicroBatchPass& pass = all.slot(0).pass;
  pass.begin_forward(false, nullptr);
  const Tensor x = pass.activation(DType::int32, tokens.shape);
  ops::copy(context_, tokens, x);
  const Tensor y = all.forward(all.slot(0), x);
  store_->acquire(context_, all.end(), -1);
  pass.enter_block();
  return model_.head().logits(pass, y, row);
}

void Replica::post_status(std::uint64_t wishes, double busy_seconds) {
  status_exchange_->post(context_, last_stage() ? sums_.rows(0, options_.accumulation) : Tensor{},
                         wishes, busy_seconds);
}

void Replica::read_sums(std::span<Sums> sums) const {
  static_assert(sizeof(Sums) == 4 * sizeof(double));
  TRIREME_EXPECT(static_cast<std::int64_t>(sums.size()) <= sums_.shape[0]);
  if (last_stage()) copy_bytes(compute_, sums.data(), sums_.data, sums.size_bytes());
}

}  // namespace trireme::train
