// SPDX-License-Identifier: Apache-2.0
//
// Pipeline schedules, and the division of blocks into chunks. Pure functions, called once per run
// by train's replica.

#include "trireme/parallel/pipeline.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "trireme/base/expect.hpp"

namespace trireme::parallel {

namespace {

/// Returns the `index`-th forward or backward of a stage. Micro-batches form groups of `stages`;
/// each group passes through all chunks in turn (backward: from the last chunk). With one chunk
/// this is the order of the micro-batches.
PipelineAction action_at(bool forward, int index, int stages, int chunks) {
  const int group = stages * chunks, within = index % group;
  const int turn = within / stages;
  return {.forward = forward,
          .micro_batch = index / group * stages + within % stages,
          .chunk = forward ? turn : chunks - 1 - turn};
}

/// Returns the number of forwards before the first backward (warm-up).
/// One chunk: the stage fills the stages behind it. Several chunks: one more round trip to the next
/// stage lies in between (Narayanan et al. 2021, section 2.2), and the first group must pass all
/// but the last chunk first.
int warmup_forwards(PipelineKind kind, int stages, int stage, int chunks, int micro_batches) {
  const int passes = micro_batches * chunks;
  switch (kind) {
    case PipelineKind::gpipe: return passes;
    case PipelineKind::one_forward_one_backward: return std::min(stages - stage - 1, passes);
    case PipelineKind::interleaved:
      return std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, passes);
  }
  return passes;
}

}  // namespace

std::vector<PipelineAction> pipeline_schedule(PipelineKind kind, int stages, int stage, int chunks,
                                              int micro_batches) {
  const bool interleaved = kind == PipelineKind::interleaved;
  TRIREME_EXPECT(stage >= 0 && stage < stages && micro_batches > 0);
  TRIREME_EXPECT(interleaved ? chunks > 0 && micro_batches % stages == 0 : chunks == 1);
  const int passes = micro_batches * chunks,
            warmup = warmup_forwards(kind, stages, stage, chunks, micro_batches);
  std::vector<PipelineAction> schedule;
  schedule.reserve(2 * static_cast<std::size_t>(passes));
  for (int i = 0; i < warmup; ++i) schedule.push_back(action_at(true, i, stages, chunks));
  for (int i = 0; i < passes; ++i) {
    if (warmup + i < passes) schedule.push_back(action_at(true, warmup + i, stages, chunks));
    schedule.push_back(action_at(false, i, stages, chunks));
  }
  return schedule;
}

ShortSchedule shorten(PipelineKind kind, int stages, int stage, int chunks, int micro_batches) {
  ShortSchedule result{.actions = pipeline_schedule(kind, stages, stage, chunks, micro_batches),
                       .period_micro_batches = kind == PipelineKind::interleaved ? stages : 1};
  if (kind == PipelineKind::gpipe) return result;
  const int period = result.period_micro_batches;
  // 1. Periods that are kept: until buffers are used again, one for comparison, the repeated one,
  //    and the last one, whose gradients are complete.
  const std::vector<int> buffers = max_in_flight(result.actions, chunks);
  const int max_buffers = *std::max_element(buffers.begin(), buffers.end()),
            warmup = warmup_forwards(kind, stages, stage, chunks, micro_batches),
            periods = (micro_batches * chunks - warmup) / (period * chunks),
            lead = (max_buffers + period - 1) / period + 2;
  if (periods <= lead + 2) return result;
  // 2. Micro-batches that are left out: whole periods, and whole turns of everything that takes
  //    turns. Two buffers of outgoing messages and of gradients take turns, too.
  std::int64_t turn = std::lcm<std::int64_t>(period, 2);
  for (const int count : buffers) turn = std::lcm<std::int64_t>(turn, count);
  result.left_out = std::int64_t{periods - lead - 2} * period / turn * turn;
  if (result.left_out == 0) return result;
  result.actions = pipeline_schedule(kind, stages, stage, chunks,
                                     micro_batches - static_cast<int>(result.left_out));
  result.times = 1 + result.left_out / period;
  const auto actions = 2 * static_cast<std::size_t>(period) * static_cast<std::size_t>(chunks);
  result.steady_begin = static_cast<std::size_t>(warmup);
  result.begin = result.steady_begin + static_cast<std::size_t>(lead) * actions;
  result.end = result.begin + actions;
  return result;
}

std::vector<int> max_in_flight(std::span<const PipelineAction> schedule, int chunks) {
  std::vector<int> held(static_cast<std::size_t>(chunks), 0), max_held(held);
  for (const PipelineAction& action : schedule) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    held[chunk] += action.forward ? 1 : -1;
    max_held[chunk] = std::max(max_held[chunk], held[chunk]);
  }
  return max_held;
}

std::vector<int> balance_chunks(std::span<const double> costs, int chunks) {
  const int blocks = static_cast<int>(costs.size());
  TRIREME_EXPECT(chunks > 0 && blocks >= chunks);
  const auto at = [blocks](int parts, int begin) {
    return static_cast<std::size_t>(parts) * static_cast<std::size_t>(blocks + 1) +
           static_cast<std::size_t>(begin);
  };
  // Dynamic program. min_cost[at(k, i)]: minimum over all divisions of the blocks from i on into k
  // ranges of the cost of the most expensive range.
  std::vector<double> min_cost(at(chunks + 1, 0), std::numeric_limits<double>::infinity());
  min_cost[at(0, blocks)] = 0;
  for (int parts = 1; parts <= chunks; ++parts) {
    for (int begin = 0; begin + parts <= blocks; ++begin) {
      // Cost of begin .. end, added from the front, so that equal blocks have equal costs at every
      // position.
      double cost = 0;
      for (int end = begin + 1; end <= blocks; ++end) {
        cost += costs[static_cast<std::size_t>(end) - 1];
        // Longer ranges cost more.
        if (cost > min_cost[at(parts, begin)]) break;
        min_cost[at(parts, begin)] =
            std::min(min_cost[at(parts, begin)], std::max(cost, min_cost[at(parts - 1, end)]));
      }
    }
  }
  // End each range as early as the optimum of the remaining blocks allows. No range then exceeds
  // the optimum, because the best division contains it.
  std::vector<int> bounds{0};
  for (int parts = chunks; parts > 0; --parts) {
    int end = bounds.back() + 1;
    while (min_cost[at(parts - 1, end)] > min_cost[at(chunks, 0)]) ++end;
    bounds.push_back(end);
  }
  return bounds;
}

}  // namespace trireme::parallel
