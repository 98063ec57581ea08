// SPDX-License-Identifier: Apache-2.0
//
// The weights of a rank, the reduction of their gradients, the optimizer, and averages.
//
// The constructor allocates in this order: master and working weights, gradients, optimizer state,
// periodic average. StepPipeline drives a step; evaluation swaps in the weight average; restore and
// saver read and write the state through store(), optimizer() and reducer().
#include "trireme/train/step/weight_update.hpp"

#include <algorithm>
#include <utility>

#include "trireme/train/step/sum_order.hpp"

namespace trireme::train {
namespace {

/// Returns the elements copied from host memory at a time: as many as are reduced at a time.
std::int64_t window_elements(const ReplicaOptions& options) {
  const bool nothing_offloaded = !options.offload.optimizer && !options.offload.parameters;
  return nothing_offloaded
             ? 0
             : std::max<std::int64_t>(1, options.bucket_bytes / size_of(DType::float32));
}

/// Returns whether `replicas` ranks add in tree order.
bool uses_tree_order(const ReplicaResources& resources, int replicas) {
  const std::int64_t weights = resources.model.weight_count();
  return choose_sum_order(resources.options, resources.target, weights, replicas).order ==
         comm::SumOrder::tree;
}

/// Returns the information for norms and matrices over the whole model: groups, global tensor
/// indices, counted tensors.
optim::NormScope norm_scope(const ReplicaResources& resources) {
  const parallel::ParameterList& whole = resources.model.parameters();
  optim::NormScope scope{.model = resources.mesh.model,
                         .tensor = resources.mesh.tensor,
                         .global_index = {},
                         .tensor_count = static_cast<int>(whole.entries().size()),
                         .counted = resources.stage_parameters.counted,
                         .engine = &resources.engine};
  for (const parallel::ParameterList::Entry& entry : resources.stage_parameters.list.entries())
    scope.global_index.push_back(whole.find(entry.spec.name));
  return scope;
}

/// Returns whether replicas apply their own gradients and are averaged from time to time.
bool has_periodic_sync(const ReplicaOptions& options) {
  return options.trains && options.sync == parallel::SyncKind::periodic;
}

/// Returns the data ranks whose gradients are summed in each step; a group of one for sync
/// periodic.
comm::Communicator gradient_group(const ReplicaOptions& options, const parallel::Mesh& mesh) {
  if (options.sync == parallel::SyncKind::periodic) return {};
  return options.sync == parallel::SyncKind::delayed ? mesh.delayed_data : mesh.data;
}

/// Returns the memory of the weights, on the device or offloaded.
parallel::StateMemory weight_memory(const ReplicaResources& resources) {
  ReplicaMemory& memory = resources.memory;
  const bool offloaded = resources.options.offload.parameters;
  return {memory.parameters, offloaded ? &memory.host_parameters : nullptr, resources.target};
}

/// Returns the memory of the optimizer state, on the device or offloaded.
parallel::StateMemory optimizer_memory(const ReplicaResources& resources) {
  ReplicaMemory& memory = resources.memory;
  const bool offloaded = resources.options.offload.optimizer;
  return {memory.optimizer_state, offloaded ? &memory.host_optimizer_state : nullptr,
          resources.target};
}

parallel::Sharding sharding_of(const ReplicaResources& resources) {
  const ReplicaOptions& options = resources.options;
  return {options.shard, has_periodic_sync(options) ? comm::Communicator() : resources.mesh.data,
          &resources.engine, window_elements(options)};
}

parallel::GradientReducer::Options reducer_options(const ReplicaResources& resources,
                                                   int gradient_ranks) {
  const ReplicaOptions& options = resources.options;
  std::optional<parallel::GradientReducer::Measurement> measurement;
  if (options.trains && options.noise_scale)
    measurement = {.counted = resources.stage_parameters.counted,
                   .target = resources.target,
                   .stages = resources.mesh.shape.pipeline};
  return {.micro_batches = options.accumulation,
          .deterministic = uses_tree_order(resources, gradient_ranks),
          .delayed = options.trains && options.sync == parallel::SyncKind::delayed,
          .transfer_type = options.reduce == DType::bfloat16 ? comm::TransferType::bfloat16
                                                             : comm::TransferType::float32,
          .measurement = std::move(measurement)};
}

}  // namespace

WeightUpdate::WeightUpdate(const ReplicaResources& resources, checkpoint::StateCopy& state_copy)
    : resources_(resources),
      state_copy_(state_copy),
      gradient_group_(gradient_group(resources.options, resources.mesh)),
      store_(resources.stage_parameters.list, resources.stage_parameters.layout,
             sharding_of(resources), weight_memory(resources), resources.memory.gradients),
      reducer_(store_,
               {.data = gradient_group_,
                .tied_group = resources.mesh.tied_group,
                .tensor = &resources.tensor_group},
               resources.engine, reducer_options(resources, gradient_group_.size()),
               resources.memory.gradients),
      optimizer_(resources.options.optimizer, store_, norm_scope(resources),
                 optimizer_memory(resources), resources.options.loss_scale,
                 resources.options.trains && resources.options.tensor_norms) {
  if (!has_periodic_sync(resources.options)) return;
  const comm::Communicator& data = resources.mesh.data;
  average_.emplace(
      store_, optimizer_.state_buffers(), data, resources.engine,
      parallel::PeriodicAverage::Options{.outer_momentum = resources.options.outer_momentum,
                                         .deterministic = uses_tree_order(resources, data.size())},
      resources.memory.optimizer_state);
}

void WeightUpdate::initialize(std::uint64_t seed) {
  store_.initialize(resources_.context, seed);
  optimizer_.start_ema(resources_.context);
}

void WeightUpdate::begin_step(bool measures_noise) {
  reducer_.begin_step(optimizer_.loss_scale().scale, measures_noise);
  if (resources_.options.float8) store_.weights_changed();
}

void WeightUpdate::anchor_replicas() {
  if (average_) average_->anchor(resources_.context);
}

void WeightUpdate::average_replicas() {
  average_->average(resources_.context);
  const auto least = [&](std::int64_t mine) {
    return resources_.mesh.data.all_reduce(mine, comm::Reduction::min);
  };
  optimizer_.set_updates(least(optimizer_.updates()));
  if (!optimizer_.scales_loss()) return;
  const optim::LossScale mine = optimizer_.loss_scale();
  optimizer_.set_loss_scale(
      {static_cast<double>(least(static_cast<std::int64_t>(mine.scale))), least(mine.good_steps)});
}

void WeightUpdate::swap_ema() {
  if (!optimizer_.ema().defined()) return;
  resources_.engine.quiesce();  // Gathers of working weights may still be in flight.
  state_copy_.wait_before_update();
  optimizer_.swap_ema(resources_.context);
  store_.refresh_working(resources_.context);
}

}  // namespace trireme::train
