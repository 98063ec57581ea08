// SPDX-License-Identifier: Apache-2.0
//
// Allocates the arenas of a rank from a memory plan, and reports how much of each was used.
//
// Replica makes one ReplicaMemory before everything else. Replica::measure() does the same on the
// meta device with an empty plan, runs one step, and returns peaks(): the plan of the real run.
#include "trireme/train/step/replica_memory.hpp"

#include <numeric>

#include "activation_store.hpp"

namespace trireme::train {
namespace {

/// Device of offloaded tensors.
Device host_of(Device device) {
  return device.kind == DeviceKind::meta ? device : Device{DeviceKind::cpu, 0};
}
Pages host_pages(Device device) {
  return in_host_memory(device.kind) ? Pages::pageable : Pages::pinned;
}

}  // namespace

std::int64_t MemoryPlan::all_activations() const {
  return std::accumulate(
      activations.begin(), activations.end(),
      offload_windows[0] + offload_windows[1] + recompute + boundary + ping_pong[0] + ping_pong[1]);
}
std::int64_t MemoryPlan::total() const {
  return parameters + gradients + optimizer + all_activations() + workspace + prepared_weights +
         keys_values + batches;
}
std::int64_t MemoryPlan::host_total() const {
  return host_parameters + host_optimizer + host_activations + host_checkpoint;
}

ReplicaMemory::ReplicaMemory(Device device, const MemoryPlan& plan, int num_activations,
                             bool offloads_activations)
    : parameters(device, "parameters", plan.parameters),
      gradients(device, "gradients", plan.gradients),
      optimizer_state(device, "optimizer state", plan.optimizer),
      recompute(device, "recomputed activations", plan.recompute),
      boundary(device, "stage boundaries", plan.boundary),
      ping_pong{Arena(device, "flow 0", plan.ping_pong[0]),
                Arena(device, "flow 1", plan.ping_pong[1])},
      workspace(device, "workspace", plan.workspace),
      prepared_weights(device, "prepared weights", plan.prepared_weights),
      keys_values(device, "keys and values", plan.keys_values),
      batches(device, "batches", plan.batches),
      host_parameters(host_of(device), "host parameters", plan.host_parameters, host_pages(device)),
      host_optimizer_state(host_of(device), "host optimizer state", plan.host_optimizer,
                           host_pages(device)),
      host_checkpoint(host_of(device), "checkpoint being written", plan.host_checkpoint,
                      host_pages(device)) {
  const auto planned = [&](int index) {
    const auto at = static_cast<std::size_t>(index);
    return at < plan.activations.size() ? plan.activations[at] : 0;
  };
  for (int index = 0; index < num_activations; ++index)
    activations.push_back(std::make_unique<Arena>(device, "activations", planned(index)));
  if (offloads_activations)
    offload_windows = std::make_unique<OffloadWindows>(
        device, plan.offload_windows, host_of(device), plan.host_activations, host_pages(device));
}

ReplicaMemory::~ReplicaMemory() = default;

MemoryPlan ReplicaMemory::peaks() const {
  MemoryPlan plan;
  plan.parameters = parameters.peak_bytes();
  plan.gradients = gradients.peak_bytes();
  plan.optimizer = optimizer_state.peak_bytes();
  for (const std::unique_ptr<Arena>& arena : activations)
    plan.activations.push_back(arena->peak_bytes());
  plan.recompute = recompute.peak_bytes();
  plan.boundary = boundary.peak_bytes();
  plan.ping_pong[0] = ping_pong[0].peak_bytes();
  plan.ping_pong[1] = ping_pong[1].peak_bytes();
  if (offload_windows != nullptr) {
    for (int window = 0; window < OffloadWindows::count; ++window)
      plan.offload_windows[window] = offload_windows->peak_bytes(window);
    plan.host_activations = offload_windows->host_peak_bytes();
  }
  plan.workspace = workspace.peak_bytes();
  plan.prepared_weights = prepared_weights.peak_bytes();
  plan.keys_values = keys_values.peak_bytes();
  plan.host_parameters = host_parameters.peak_bytes();
  plan.host_optimizer = host_optimizer_state.peak_bytes();
  plan.host_checkpoint = host_checkpoint.peak_bytes();
  plan.batches = batches.peak_bytes();
  return plan;
}

}  // namespace trireme::train
