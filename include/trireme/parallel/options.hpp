#pragma once

#include <cstdint>

namespace trireme::parallel {

enum class PipelineKind : std::uint8_t { gpipe, one_forward_one_backward, interleaved };

/// What the replicas hold only a part of (ZeRO 1, 2, 3): each kind includes those before it.
enum class ShardKind : std::uint8_t { none, optimizer, gradients, parameters };

/// When the data-parallel ranks come to the same weights: their gradients are summed in every step;
/// the sum is applied one step later, while the next step computes (delayed); or each rank goes its
/// own way and weights, slots and statistics are averaged every so many steps (local SGD).
enum class SyncKind : std::uint8_t { step, delayed, periodic };

/// What lies in host memory and comes to the device when it is used.
struct Offload {
  bool optimizer = false;    ///< slots
  bool parameters = false;   ///< float32 master weights
  bool activations = false;  ///< what forward keeps for backward
  bool any() const { return optimizer || parameters || activations; }
  bool operator==(const Offload&) const = default;
};

/// Table [parallel].
struct ParallelOptions {
  int data = 0;  ///< 0: auto, ranks / (tensor * pipeline)
  int tensor = 1, pipeline = 1;
  PipelineKind pipeline_schedule = PipelineKind::one_forward_one_backward;
  int pipeline_chunks = 1;  ///< of a stage; interleaved: 2 or more
  ShardKind shard = ShardKind::none;
  bool sequence = false;
  int recompute = 0;  ///< every n-th block is run again in backward; 0: none, 1: all
  Offload offload;
  SyncKind sync = SyncKind::step;
  int sync_every = 1;         ///< periodic: steps from one average to the next
  double outer_momentum = 0;  ///< periodic: of the outer step; 0: the plain average
  double bucket_mb = 25;
};

}  // namespace trireme::parallel
