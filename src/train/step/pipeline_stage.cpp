// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward through the blocks of a pipeline stage, and the messages to its neighbors.
//
// A step: begin_step(), then forward() or backward() for each action of the schedule. forward()
// uploads a micro-batch or receives activations, runs a chunk, and sends its output. backward()
// starts from the loss or receives a gradient, runs the chunk in reverse, and sends the gradient of
// its input. StepPipeline calls them; evaluation and generate use the forward path alone.
#include "trireme/train/step/pipeline_stage.hpp"

#include <algorithm>

#include "activation_store.hpp"
#include "batch_uploader.hpp"
#include "model_chunk.hpp"
#include "trireme/data/images/image_form.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/loss.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::train {
namespace {

/// Returns a copy of numbers that stay the same for the whole run.
Tensor copy_to_device(const ReplicaResources& resources, const std::vector<float>& numbers) {
  const Tensor copy = resources.memory.batches.allocate(DType::float32, {std::ssize(numbers)});
  if (resources.context.meta()) return copy;
  const Stream& stream = resources.context.stream();
  copy_bytes(stream, copy.data, numbers.data(), numbers.size() * sizeof(float));
  synchronize(stream);
  return copy;
}

/// Returns what the first stage does with images. Of many channels, mean and standard deviation are
/// copied to the device.
ops::ImagePreparation preparation_of(const ReplicaResources& resources) {
  const data::AugmentOptions& augment = resources.options.augment;
  ops::ImagePreparation preparation =
      data::ImagePipeline::training(augment, resources.options.seed).preparation();
  if (resources.mesh.coordinates.stage != 0) return preparation;
  data::set_normalization(
      data::normalization_of(augment, resources.options.image[2]),
      [&](const std::vector<float>& numbers) { return copy_to_device(resources, numbers); },
      preparation);
  return preparation;
}

/// Returns loss.class_weights in the memory of the last stage, which computes the loss. Only their
/// ratios matter, so the largest is 1: sums of small or large ones would leave float32.
Tensor class_weights_of(const ReplicaResources& resources) {
  const std::vector<double>& weights = resources.options.loss.class_weights;
  const bool is_last = resources.mesh.coordinates.stage + 1 == resources.mesh.shape.pipeline;
  if (weights.empty() || !is_last || !resources.options.trains) return {};
  const double largest = *std::max_element(weights.begin(), weights.end());
  std::vector<float> scaled;
  for (const double weight : weights) scaled.push_back(static_cast<float>(weight / largest));
  return copy_to_device(resources, scaled);
}

/// Returns memory on the last stage for what ReplicaOptions::kept_rows names.
Tensor allocate_kept_rows(const ReplicaResources& resources) {
  const ReplicaOptions& options = resources.options;
  const bool is_last = resources.mesh.coordinates.stage + 1 == resources.mesh.shape.pipeline;
  if (options.kept_rows == KeptRows::none || !is_last) return {};
  const std::int64_t labels = options.micro * options.rows_per_sample();
  return resources.memory.batches.allocate(
      DType::float32, {labels, options.kept_rows == KeptRows::logits ? options.outputs.count : 4});
}

/// Message tags encode the receiving chunk and the direction. Messages with the same tag arrive in
/// the order of micro-batches.
int tag_of(int receiving_chunk, bool forward) { return 2 * receiving_chunk + (forward ? 1 : 0); }

/// `label` is a string literal; `chunk` is the one that sends or receives.
comm::Engine::Purpose purpose_of(const char* label, int micro_batch, int chunk) {
  return {label, {"micro-batch", micro_batch}, {"chunk", chunk}};
}

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data), static_cast<std::size_t>(tensor.bytes())};
}

/// Returns the largest number of elements in a message between this stage and its neighbors.
std::int64_t max_message_elements(const ReplicaResources& resources) {
  const model::Model& model = resources.model;
  std::int64_t elements = 0;
  for (const StageParameters::BlockRange& chunk : resources.stage_parameters.chunks) {
    for (const int bound : {chunk.begin, chunk.end}) {
      if (bound > 0 && bound < model.block_count())
        elements = std::max(elements, model.block_input_shape(bound).elements());
    }
  }
  return elements;
}

}  // namespace

comm::Engine::Connections engine_connections(const ReplicaOptions& options,
                                             const parallel::Mesh& mesh) {
  comm::Engine::Connections connections{.groups = {mesh.world, mesh.data, mesh.tensor, mesh.model},
                                        .messages = mesh.pipeline,
                                        .routes = {}};
  if (options.sync == parallel::SyncKind::delayed) connections.groups.push_back(mesh.delayed_data);
  connections.groups.push_back(mesh.batch_norm);  // Ignored if it is a group of one.
  if (mesh.shape.pipeline == 1) return connections;
  connections.groups.push_back(mesh.tied_group);
  // A lane holds all messages from one stage to its neighbor, in the order of sending, for all
  // chunks.
  const int stages = mesh.shape.pipeline, ends = stages * options.pipeline_chunks - 1;
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

PipelineStage::PipelineStage(const ReplicaResources& resources,
                             const std::vector<parallel::PipelineAction>& schedule,
                             WeightUpdate& update)
    : resources_(resources),
      schedule_(schedule),
      store_(update.store()),
      reducer_(update.reducer()),
      ping_pong_(resources.memory.ping_pong[0], resources.memory.ping_pong[1]),
      sums_(resources.memory.batches.allocate(
          DType::float64,
          {std::max<std::int64_t>(resources.options.accumulation, max_unread_micro_batches), 4})),
      kept_rows_(allocate_kept_rows(resources)),
      preparation_(preparation_of(resources)),
      class_weights_(class_weights_of(resources)),
      samples_per_step_(resources.options.global * update.gradient_ranks() /
                        resources.mesh.shape.data),
      statistic_scale_(static_cast<float>(
          1.0 / (static_cast<double>(resources.options.accumulation) * update.gradient_ranks()))) {
  // 1. Chunks, with a slot for each of their micro-batches in flight.
  const ReplicaOptions& options = resources.options;
  ReplicaMemory& memory = resources.memory;
  const model::PassResources pass_resources{.context = resources.context,
                                            .store = store_,
                                            .tensor = resources.tensor_group,
                                            .ping_pong = ping_pong_,
                                            .seed = options.seed,
                                            .batch_norm = resources.batch_norm_group.get(),
                                            .several_micro_batches = options.accumulation > 1};
  const std::vector<int> slots = parallel::max_in_flight(schedule, options.pipeline_chunks);
  std::size_t used = 0;
  for (std::size_t c = 0; c < slots.size(); ++c) {
    chunks_.push_back(std::make_unique<ModelChunk>(
        resources.model, resources.stage_parameters.chunks[c], options, memory.recompute));
    for (int slot = 0; slot < slots[c]; ++slot)
      chunks_.back()->add_slot(pass_resources, *memory.activations[used++],
                               memory.offload_windows.get());
  }
  // 2. Buffers for messages between stages.
  if (const std::int64_t elements = max_message_elements(resources); elements > 0) {
    for (Tensor* buffer : {&incoming_, &outgoing_[0], &outgoing_[1]})
      *buffer = memory.boundary.allocate(options.compute, {elements});
  }
  // 3. Keys and values of generated text.
  if (options.generation && options.generation->cached_rows > 0) {
    for (const std::int64_t width :
         family_of(options.model).cache_widths(options.model, resources.mesh.shape.tensor))
      keys_values_.push_back(
          memory.keys_values.allocate(options.compute, {options.generation->cached_rows, width}));
  }
  // 4. Upload of micro-batches.
  const Device device = resources.context.stream().device;
  uploader_ = std::make_unique<BatchUploader>(options, device, !in_host_memory(resources.target),
                                              resources.mesh.coordinates.stage == 0, slots[0],
                                              memory.batches);
}

PipelineStage::~PipelineStage() = default;

/// Returns the input of the first block for the latest upload, in memory of the pass: images in
/// compute precision, or token numbers.
Tensor PipelineStage::prepare_input(model::MicroBatchPass& pass) {
  const BatchUploader::Inputs& from = uploader_->inputs();
  ops::Context& context = resources_.context;
  Tensor x;
  if (resources_.options.tokens()) {
    x = pass.activation(DType::int32, from.values.shape);
    ops::copy(context, from.values, x);
  } else {
    const DType dtype = resources_.options.compute;
    x = pass.activation(dtype, resources_.model.input_in_memory(dtype, context.target()));
    ops::ImagePreparation preparation = preparation_;
    if (!pass.training()) preparation.erases = preparation.mixes = false;
    ops::prepare_images(context, preparation, from.values, from.transforms, x);
  }
  uploader_->release_inputs(resources_.context.stream());
  return x;
}

/// Receives the input of chunk `chunk` from the previous chunk (forward), or its output gradient
/// from the next one. Waits for the message.
Tensor PipelineStage::receive(const Tensor& into, int chunk, bool forward, int micro_batch) {
  const int from = forward ? chunk - 1 : chunk + 1;
  resources_.engine.wait(resources_.engine.receive(
      resources_.mesh.pipeline, bytes_of(into), from % resources_.mesh.shape.pipeline,
      tag_of(chunk, forward),
      purpose_of(forward ? "trireme/train/receive_activation" : "trireme/train/receive_gradient",
                 micro_batch, chunk)));
  return into;
}

/// Sends the output of chunk `chunk` to the next chunk (forward), or its input gradient to the
/// previous one. The memory must not change until the request is done.
comm::Engine::Request PipelineStage::send(const Tensor& tensor, int chunk, bool forward,
                                          int micro_batch) {
  const int to = forward ? chunk + 1 : chunk - 1;
  return resources_.engine.send(
      resources_.mesh.pipeline, bytes_of(tensor), to % resources_.mesh.shape.pipeline,
      tag_of(to, forward),
      purpose_of(forward ? "trireme/train/send_activation" : "trireme/train/send_gradient",
                 micro_batch, chunk));
}

/// Copies a tensor and sends the copy, for tensors whose memory the next block reuses.
comm::Engine::Request PipelineStage::send_copy(const Tensor& tensor, int chunk, bool forward,
                                               int micro_batch) {
  outgoing_index_ = 1 - outgoing_index_;
  comm::Engine::Request& sent = outgoing_requests_[outgoing_index_];
  resources_.engine.wait(sent);
  Tensor copy = outgoing_[outgoing_index_];
  copy.shape = tensor.shape;
  ops::copy(resources_.context, tensor, copy);
  return sent = send(copy, chunk, forward, micro_batch);
}

void PipelineStage::begin_step() {
  uploader_->begin_step();
  // An evaluation in between may have advanced the buffer index. It is reset so that launches
  // repeat those of earlier steps and CUDA graphs can be replayed.
  outgoing_index_ = 0;
}

TransferClock PipelineStage::make_transfer_clock() const {
  return {resources_.context.stream().device,
          BatchUploader::max_copies * resources_.options.accumulation};
}

void PipelineStage::forward(const parallel::PipelineAction& action, const data::MicroBatch* batch,
                            TransferClock* clock) {
  ModelChunk& here = chunk(action);
  ModelChunk::MicroBatchSlot& slot = here.slot(action.micro_batch);
  // The previous output in this slot must have been sent before it is overwritten.
  resources_.engine.wait(slot.send_request);
  if (batch != nullptr)
    uploader_->upload(resources_.context.stream(), *batch, action.micro_batch, clock);
  slot.pass.begin_forward(true, uploader_->retained(action.micro_batch).keys());
  slot.begin_part(0);
  const Tensor x =
      here.first() ? prepare_input(slot.pass)
                   : receive(slot.pass.activation(resources_.options.compute,
                                                  resources_.model.block_input_shape(here.begin())),
                             here.number(), true, action.micro_batch);
  slot.output = here.forward(slot, x);
  if (!here.last())
    slot.send_request = send(slot.activation_store.copy_for_send(resources_.context, slot.output),
                             here.number(), true, action.micro_batch);
}

void PipelineStage::backward(const parallel::PipelineAction& action) {
  ModelChunk& here = chunk(action);
  ModelChunk::MicroBatchSlot& slot = here.slot(action.micro_batch);
  model::MicroBatchPass& pass = slot.pass;
  const int end = here.last() ? here.end() + 1 : here.end();
  pass.begin_backward(reducer_.begin_backward(resources_.context, here.begin(), end),
                      statistic_scale_);
  Tensor dy;
  if (here.last()) {
    // Each sample (token) has weight 1 / N, where N counts those of the whole step (periodic: of
    // this replica). Gradients of micro-batches and replicas are then simply added. The loss scale
    // is divided out where the update is decided.
    const model::LossOptions& loss = resources_.options.loss;
    const model::LossSettings scale{
        .kind = &model::loss_of(loss, resources_.options.answer().kind),
        .label_smoothing = static_cast<float>(loss.label_smoothing),
        .delta = static_cast<float>(loss.delta),
        .gradient_scale =
            gradient_factor_ *
            static_cast<float>(
                reducer_.scale() /
                static_cast<double>(samples_per_step_ * resources_.options.labels_per_sample())),
        .label_weights = uploader_->retained(action.micro_batch).label_weights,
        .class_weights = class_weights_};
    store_.acquire(resources_.context, here.end(), here.end() - 1);
    reducer_.block_begins(resources_.context, here.end());
    slot.activation_store.acquire(resources_.context, here.parts() - 1);
    pass.enter_block();
    dy = resources_.model.head().loss(pass, slot.output,
                                      uploader_->retained(action.micro_batch).labels, scale,
                                      sums_of(action.micro_batch));
    reducer_.block_done(resources_.context, here.end());
  } else {
    dy = incoming_;
    dy.shape = resources_.model.block_input_shape(here.end());
    receive(dy, here.number(), false, action.micro_batch);
  }
  // The input gradient is in memory that the next backward reuses, so a copy is sent.
  const Tensor dx = here.backward(slot, dy, reducer_);
  if (!here.first()) send_copy(dx, here.number(), false, action.micro_batch);
}

void PipelineStage::evaluate(const data::MicroBatch& batch, int number, bool keeps_rows) {
  TRIREME_EXPECT(number < max_unread_micro_batches);
  uploader_->upload(resources_.context.stream(), batch, number);
  for (const std::unique_ptr<ModelChunk>& here : chunks_) {
    model::MicroBatchPass& pass = here->slot(0).pass;
    resources_.engine.wait(here->slot(0).send_request);  // A message of the last training step.
    pass.begin_forward(false, nullptr);
    const Tensor x =
        here->first() ? prepare_input(pass)
                      : receive(pass.activation(resources_.options.compute,
                                                resources_.model.block_input_shape(here->begin())),
                                here->number(), true, number);
    const Tensor y = here->forward(here->slot(0), x);
    if (!here->last()) {
      send_copy(y, here->number(), true, number);
      continue;
    }
    store_.acquire(resources_.context, here->end(), -1);
    pass.enter_block();
    // Without smoothing.
    const model::LossOptions& loss = resources_.options.loss;
    model::LossSettings plain{.kind = &model::loss_of(loss, resources_.options.answer().kind),
                              .delta = static_cast<float>(loss.delta)};
    if (keeps_rows)
      (resources_.options.kept_rows == KeptRows::logits ? plain.logits : plain.statistics) =
          kept_rows_;
    resources_.model.head().loss(pass, y, uploader_->retained(number).labels, plain,
                                 sums_of(number));
  }
}

Tensor PipelineStage::logits(const Tensor& tokens, std::int64_t row, std::int64_t first) {
  TRIREME_EXPECT(resources_.options.generation && resources_.mesh.shape.pipeline == 1 &&
                 chunks_.size() == 1);
  ModelChunk& all = *chunks_[0];
  model::MicroBatchPass& pass = all.slot(0).pass;
  pass.begin_sequence({keys_values_, first});
  const Tensor x = pass.activation(DType::int32, tokens.shape);
  ops::copy(resources_.context, tokens, x);
  const Tensor y = all.forward(all.slot(0), x);
  store_.acquire(resources_.context, all.end(), -1);
  pass.enter_block();
  return resources_.model.head().logits(pass, y, row);
}

Tensor PipelineStage::step_sums() const {
  return is_last() ? sums_.rows(0, resources_.options.accumulation) : Tensor{};
}

void PipelineStage::read_sums(std::span<Sums> sums) const {
  static_assert(sizeof(Sums) == 4 * sizeof(double));
  TRIREME_EXPECT(static_cast<std::int64_t>(sums.size()) <= sums_.shape[0]);
  if (is_last())
    copy_bytes(resources_.context.stream(), sums.data(), sums_.data, sums.size_bytes());
}

void PipelineStage::read_rows(std::span<float> rows) const {
  TRIREME_EXPECT(static_cast<std::int64_t>(rows.size()) == row_values());
  if (!rows.empty())
    copy_bytes(resources_.context.stream(), rows.data(), kept_rows_.data, rows.size_bytes());
}

}  // namespace trireme::train
