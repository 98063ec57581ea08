#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/parallel/options.hpp"

namespace trireme::parallel {

/// One thing a stage does: forward or backward of one micro-batch through one of its chunks.
struct PipelineAction {
  bool forward = true;
  int micro_batch = 0, chunk = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// What stage `stage` of `stages` does in a step of `micro_batches`, in order. Chunk c of stage s
/// is the model's chunk c * stages + s; a chunk sees its micro-batches in ascending order, forward
/// and backward. What a stage sends to the next one (activations) or the one before (gradients) is
/// taken there in the order of sending; with sends that do not wait and receives that do, no
/// schedule stands still. gpipe (Huang et al. 2019): all forwards, then all backwards. 1F1B
/// (Narayanan et al. 2019, PipeDream-flush): stages - stage - 1 forwards ahead, then one forward,
/// one backward. interleaved (Narayanan et al. 2021): `chunks` > 1, micro_batches a multiple of
/// stages.
std::vector<PipelineAction> pipeline_schedule(PipelineKind kind, int stages, int stage, int chunks,
                                              int micro_batches);

/// The most micro-batches of one chunk that are between forward and backward at once in a schedule:
/// slots of activations, one number a chunk.
std::vector<int> max_in_flight(std::span<const PipelineAction> schedule, int chunks);

/// Cuts blocks into `chunks` contiguous ranges of at least one block, so that the most costly range
/// costs least: chunks + 1 bounds. Of equal cuts the earliest: the first stages hold the most
/// micro-batches at once, so they get the fewest blocks.
std::vector<int> balance_chunks(std::span<const double> costs, int chunks);

}  // namespace trireme::parallel
