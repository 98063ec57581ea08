// SPDX-License-Identifier: Apache-2.0
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

/// A schedule without some of the equal periods of its steady state.
struct ShortSchedule {
  std::vector<PipelineAction> actions;  ///< of a step with `left_out` fewer micro-batches
  /// The period [begin, end) of `actions` stands for `times` equal ones of the whole schedule.
  /// It is a copy of the period in front of it, with later micro-batches.
  std::size_t begin = 0, end = 0;
  std::int64_t times = 1;
  int period_micro_batches = 0;  ///< Micro-batches that each chunk begins in a period.
  std::int64_t left_out = 0;     ///< Micro-batches: (times - 1) * period_micro_batches.
  std::size_t steady_begin = 0;  ///< First action of the steady state.
};

/// Shortens the schedule of a stage (arguments as in pipeline_schedule()) for a rehearsal.
///
/// In the steady state a forward and a backward alternate, and the same actions return after
/// `period_micro_batches`. As many micro-batches are kept that an activation buffer which the kept
/// period uses was used before in the steady state, and that the last micro-batches use the same
/// activation buffers as without shortening. Nothing is left out if there are too few micro-batches
/// for that, and with gpipe, which has no steady state.
ShortSchedule shorten(PipelineKind kind, int stages, int stage, int chunks, int micro_batches);

/// Divides blocks into `chunks` contiguous ranges of at least one block that minimize the maximum
/// cost of a range. Returns chunks + 1 bounds. Among equal divisions it takes the earliest bounds:
/// the first stages have the most micro-batches in flight, so they receive the fewest blocks.
std::vector<int> balance_chunks(std::span<const double> costs, int chunks);

}  // namespace trireme::parallel
