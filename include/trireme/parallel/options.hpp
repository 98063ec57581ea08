#pragma once

#include <cstdint>

namespace trireme::parallel {

enum class PipelineKind : std::uint8_t { gpipe, one_forward_one_backward, interleaved };

/// What the replicas hold only a part of (ZeRO 1, 2, 3): each kind includes those before it.
enum class ShardKind : std::uint8_t { none, optimizer, gradients, parameters };

/// Table [parallel].
struct ParallelOptions {
  int data = 0;  ///< 0: auto, ranks / (tensor * pipeline)
  int tensor = 1, pipeline = 1;
  PipelineKind pipeline_schedule = PipelineKind::one_forward_one_backward;
  int pipeline_chunks = 1;  ///< of a stage; interleaved: 2 or more
  ShardKind shard = ShardKind::none;
  bool sequence = false;
  int recompute = 0;  ///< every n-th block is run again in backward; 0: none, 1: all
  double bucket_mb = 25;
};

}  // namespace trireme::parallel
