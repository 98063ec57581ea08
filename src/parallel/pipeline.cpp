#include "trireme/parallel/pipeline.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "trireme/base/expect.hpp"

namespace trireme::parallel {

namespace {

/// The `index`-th pass of a stage in one direction: micro-batches go in groups of `stages`, each
/// group through all chunks in turn (backward: from the last chunk to the first). With one chunk
/// that is simply the order of the micro-batches.
PipelineAction action_at(bool forward, int index, int stages, int chunks) {
  const int group = stages * chunks, within = index % group;
  const int turn = within / stages;
  return {.forward = forward,
          .micro_batch = index / group * stages + within % stages,
          .chunk = forward ? turn : chunks - 1 - turn};
}

/// How many forwards a stage is ahead of its backwards. A stage of one chunk waits for the stages
/// behind it. With more, one more round trip to the next stage lies between (the stage behind sends
/// two passes for each, Narayanan et al. 2021, section 2.2), and all but the last chunk's first
/// group must have gone forward before the first backward can come.
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
  // least[at(k, i)]: the cost of the most costly range where the blocks from i on are cut into k
  // ranges.
  std::vector<double> min_cost(at(chunks + 1, 0), std::numeric_limits<double>::infinity());
  min_cost[at(0, blocks)] = 0;
  for (int parts = 1; parts <= chunks; ++parts) {
    for (int begin = 0; begin + parts <= blocks; ++begin) {
      double cost = 0;  // of begin .. end, added from the front, so that equal blocks cost the same
                        // wherever they stand
      for (int end = begin + 1; end <= blocks; ++end) {
        cost += costs[static_cast<std::size_t>(end) - 1];
        min_cost[at(parts, begin)] =
            std::min(min_cost[at(parts, begin)], std::max(cost, min_cost[at(parts - 1, end)]));
      }
    }
  }
  // Every range ends as early as the rest allows: no range up to the first such end costs more than
  // the limit, since the best cut holds it.
  std::vector<int> bounds{0};
  for (int parts = chunks; parts > 0; --parts) {
    int end = bounds.back() + 1;
    while (min_cost[at(parts - 1, end)] > min_cost[at(chunks, 0)]) ++end;
    bounds.push_back(end);
  }
  return bounds;
}

}  // namespace trireme::parallel
