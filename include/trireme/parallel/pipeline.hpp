#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/parallel/options.hpp"

namespace trireme::parallel {

/// One action of a stage: forward or backward of one micro-batch through one of its chunks.
struct PipelineAction {
  bool forward = true;
  int micro_batch = 0, chunk = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// Returns the actions of stage `stage` of `stages` in a step of `micro_batches`, in order.
///
/// Chunk c of stage s is chunk c * stages + s of the model. A chunk processes its micro-batches in
/// ascending order, forward and backward. The next stage receives activations, and the previous one
/// gradients, in the order of sending. If sends do not block, no schedule deadlocks.
/// - gpipe (Huang et al. 2019): all forwards, then all backwards.
/// - 1F1B (Narayanan et al. 2019, PipeDream-flush): stages - stage - 1 forwards, then forward and
///   backward in turn.
/// - interleaved (Narayanan et al. 2021): `chunks` > 1; micro_batches must be a multiple of stages.
///
///   1F1B, 3 stages, 4 micro-batches (F forward, B backward):
///   stage 0   F0 F1 F2 B0 F3 B1 B2 B3
///   stage 1   F0 F1 B0 F2 B1 F3 B2 B3
///   stage 2   F0 B0 F1 B1 F2 B2 F3 B3
std::vector<PipelineAction> pipeline_schedule(PipelineKind kind, int stages, int stage, int chunks,
                                              int micro_batches);

/// Returns for each chunk the maximum number of micro-batches between forward and backward at the
/// same time: the number of activation buffers that it needs.
std::vector<int> max_in_flight(std::span<const PipelineAction> schedule, int chunks);

/// Divides blocks into `chunks` contiguous ranges of at least one block that minimize the maximum
/// cost of a range. Returns chunks + 1 bounds. Among equal divisions it takes the earliest bounds:
/// the first stages have the most micro-batches in flight, so they receive the fewest blocks.
std::vector<int> balance_chunks(std::span<const double> costs, int chunks);

}  // namespace trireme::parallel
