// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::parallel {

enum class PipelineKind : std::uint8_t { gpipe, one_forward_one_backward, interleaved };

/// The state of which each replica stores only a part (ZeRO stages 1, 2 and 3). Each kind includes
/// the previous ones.
enum class ShardKind : std::uint8_t { none, optimizer, gradients, parameters };

/// When data-parallel replicas synchronize.
///
/// - step: gradients are summed in every step.
/// - delayed: the sum is applied one step later, so that it overlaps with the next step.
/// - periodic: replicas train independently; every n steps weights, slots and statistics are
///   averaged (local SGD).
enum class SyncKind : std::uint8_t { step, delayed, periodic };

/// State in host memory that is copied to the device for its use.
struct Offload {
  bool optimizer = false;    ///< slots of the optimizer
  bool parameters = false;   ///< float32 master weights
  bool activations = false;  ///< activations saved for backward
  bool any() const { return optimizer || parameters || activations; }
  bool operator==(const Offload&) const = default;
};

/// Options of the table [parallel]; docs/reference/deck.md documents the keys.
struct ParallelOptions {
  int data = 0;  ///< 0: automatic, ranks / (tensor * pipeline)
  int tensor = 1, pipeline = 1;
  PipelineKind pipeline_schedule = PipelineKind::one_forward_one_backward;
  int pipeline_chunks = 1;  ///< chunks of a stage; interleaved: 2 or more
  ShardKind shard = ShardKind::none;
  bool sequence = false;
  int recompute = 0;  ///< every n-th block is recomputed in backward; 0: none, 1: all
  Offload offload;
  SyncKind sync = SyncKind::step;
  int sync_every = 1;         ///< periodic: steps between averages
  double outer_momentum = 0;  ///< periodic: momentum of the outer step; 0: plain average
  double bucket_mb = 25;
  /// Value of sync_batch_norm for all data ranks.
  static constexpr int all_data_ranks = -1;
  /// Neighboring data ranks that compute batch norm together: a number, all_data_ranks, or 0: each
  /// rank by itself.
  int sync_batch_norm = 0;
};

}  // namespace trireme::parallel
