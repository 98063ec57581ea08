// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/tensor/arena.hpp"

namespace trireme::train {

class OffloadWindows;

/// Bytes of every arena of a rank, measured by running the same code on the meta device.
struct MemoryPlan {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  std::vector<std::int64_t> activations;  ///< One entry per chunk and micro-batch in flight.
  /// Offloaded activations: device windows of the blocks that run now.
  std::int64_t offload_windows[2] = {0, 0};
  std::int64_t recompute = 0, boundary = 0, ping_pong[2] = {0, 0}, workspace = 0,
               prepared_weights = 0, batches = 0;
  /// Text generation: keys and values of earlier positions, of all layers.
  std::int64_t keys_values = 0;
  std::int64_t host_parameters = 0, host_optimizer = 0,
               host_activations = 0;  ///< parallel.offload: bytes in host memory.
  /// checkpoint.async: the copy of the state and the staging buffer of the writer thread.
  std::int64_t host_checkpoint = 0;
  std::int64_t all_activations() const;
  std::int64_t total() const;       ///< Returns the bytes on the device.
  std::int64_t host_total() const;  ///< Returns the bytes in host memory.
  bool operator==(const MemoryPlan&) const = default;
};

/// All planned memory of a rank, in one arena for each use. The arenas never grow.
///
/// On the meta device they only count: peaks() after one step and one evaluation is the plan of a
/// real run. Memory outside the plan is listed in docs/design/memory.md.
struct ReplicaMemory {
  /// Allocates the arenas of `plan` on `device`, and those of offloaded state in host memory.
  ///
  /// `num_activations`: micro-batches in flight, summed over the chunks of the rank. It is not read
  /// from the plan, because the plan is empty on the meta device. Throws Failure if memory cannot
  /// be allocated.
  ReplicaMemory(Device device, const MemoryPlan& plan, int num_activations,
                bool offloads_activations);
  ~ReplicaMemory();
  ReplicaMemory(const ReplicaMemory&) = delete;
  ReplicaMemory& operator=(const ReplicaMemory&) = delete;

  /// Returns the largest number of bytes used so far in each arena.
  MemoryPlan peaks() const;

  Arena parameters, gradients, optimizer_state;
  Arena recompute;     ///< Activations of a block that is recomputed in backward.
  Arena boundary;      ///< Buffers for messages between stages.
  Arena ping_pong[2];  ///< Outputs of blocks and their gradients that need not be kept.
  Arena workspace;     ///< Scratch memory of ops and libraries, free after each op.
  Arena prepared_weights;
  Arena keys_values;  ///< Keys and values of earlier positions in text generation.
  Arena batches;      ///< Micro-batches, their loss sums, and the status exchange.
  Arena host_parameters, host_optimizer_state;
  Arena host_checkpoint;  ///< The copy of the state that a background checkpoint writes.
  /// One for each micro-batch in flight, chunk by chunk.
  std::vector<std::unique_ptr<Arena>> activations;
  /// Null unless parallel.offload names "activations".
  std::unique_ptr<OffloadWindows> offload_windows;
};

}  // namespace trireme::train
