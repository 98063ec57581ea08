// SPDX-License-Identifier: Apache-2.0
//
// Pipeline schedules: every pass occurs once and in order, no deadlock, messages in order of
// sending, and the idle time and activation memory of the papers. Also the division of blocks into
// chunks.

#include "trireme/parallel/pipeline.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace trireme::parallel {
namespace {

struct Case {
  PipelineKind kind;
  int stages, chunks, micro_batches;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
      for (const PipelineKind kind : {PipelineKind::gpipe, PipelineKind::one_forward_one_backward})
        cases.push_back({kind, stages, 1, micro_batches});
      for (int chunks = 1; chunks <= 3 && micro_batches % stages == 0; ++chunks)
        cases.push_back({PipelineKind::interleaved, stages, chunks, micro_batches});
    }
  }
  return cases;
}

std::string name_of(const Case& c) {
  return fmt::format("kind {}, {} stages, {} chunks, {} micro-batches", static_cast<int>(c.kind),
                     c.stages, c.chunks, c.micro_batches);
}

std::vector<PipelineAction> schedule_of(const Case& c, int stage) {
  return pipeline_schedule(c.kind, c.stages, stage, c.chunks, c.micro_batches);
}

/// Simulates all stages of a step: a pass starts when its stage is free and its input has arrived
/// (sending takes no time).
class Simulation {
 public:
  static constexpr double forward_seconds = 1, backward_seconds = 2;

  explicit Simulation(const Case& c) : case_(c) {
    std::vector<std::vector<PipelineAction>> schedules;
    for (int stage = 0; stage < c.stages; ++stage) schedules.push_back(schedule_of(c, stage));
    std::vector<std::size_t> next(schedules.size(), 0);
    std::vector<double> free(schedules.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
        while (next[stage] < schedules[stage].size()) {
          const PipelineAction& action = schedules[stage][next[stage]];
          const std::optional<double> ready = input_ready(static_cast<int>(stage), action);
          if (!ready) break;
          free[stage] = std::max(free[stage], *ready) +
                        (action.forward ? forward_seconds : backward_seconds) / c.chunks;
          done_[key(action.forward, global_chunk(static_cast<int>(stage), action.chunk),
                    action.micro_batch)] = free[stage];
          ++next[stage];
          moved = true;
        }
      }
    }
    finished_ = true;
    for (std::size_t stage = 0; stage < schedules.size(); ++stage)
      finished_ = finished_ && next[stage] == schedules[stage].size();
    seconds_ = *std::max_element(free.begin(), free.end());
  }

  /// Returns whether every stage completed its schedule.
  bool finished() const { return finished_; }
  /// Returns the idle time of a stage divided by its busy time.
  double bubble() const {
    return seconds_ / (case_.micro_batches * (forward_seconds + backward_seconds)) - 1;
  }

 private:
  using Key = std::tuple<bool, int, int>;
  static Key key(bool forward, int global, int micro_batch) {
    return {forward, global, micro_batch};
  }
  int global_chunk(int stage, int chunk) const { return chunk * case_.stages + stage; }

  /// Returns when the input of a pass has arrived; nothing if it has not yet.
  std::optional<double> input_ready(int stage, const PipelineAction& action) const {
    const int global = global_chunk(stage, action.chunk), last = case_.stages * case_.chunks - 1;
    double ready = 0;
    std::vector<Key> needed;
    if (action.forward && global > 0) needed.push_back(key(true, global - 1, action.micro_batch));
    if (!action.forward) needed.push_back(key(true, global, action.micro_batch));
    if (!action.forward && global < last)
      needed.push_back(key(false, global + 1, action.micro_batch));
    for (const Key& one : needed) {
      const auto found = done_.find(one);
      if (found == done_.end()) return std::nullopt;
      ready = std::max(ready, found->second);
    }
    return ready;
  }

  Case case_;
  std::map<Key, double> done_;
  bool finished_ = false;
  double seconds_ = 0;
};

TEST(PipelineSchedule, EveryPassOfEveryChunkIsThereOnce) {
  for (const Case& c : all_cases()) {
    for (int stage = 0; stage < c.stages; ++stage) {
      std::map<std::tuple<bool, int, int>, int> count;
      const auto schedule = schedule_of(c, stage);
      for (const PipelineAction& action : schedule) {
        ++count[{action.forward, action.micro_batch, action.chunk}];
        EXPECT_TRUE(action.micro_batch >= 0 && action.micro_batch < c.micro_batches &&
                    action.chunk >= 0 && action.chunk < c.chunks)
            << name_of(c);
      }
      EXPECT_EQ(schedule.size(), static_cast<std::size_t>(2 * c.micro_batches * c.chunks))
          << name_of(c);
      EXPECT_EQ(count.size(), schedule.size()) << name_of(c);
    }
  }
}

// The deterministic tree of gradients adds the micro-batches of a chunk in this order, and
// activation buffers are used in turn.
TEST(PipelineSchedule, AChunkSeesItsMicroBatchesInAscendingOrder) {
  for (const Case& c : all_cases()) {
    for (int stage = 0; stage < c.stages; ++stage) {
      std::map<std::pair<bool, int>, int> next;
      for (const PipelineAction& action : schedule_of(c, stage))
        EXPECT_EQ(action.micro_batch, (next[{action.forward, action.chunk}]++)) << name_of(c);
    }
  }
}

TEST(PipelineSchedule, BlockingReceivesNeverWaitForEver) {
  for (const Case& c : all_cases()) EXPECT_TRUE(Simulation(c).finished()) << name_of(c);
}

// A stage receives the messages of one direction in the order of sending, so messages need no
// sorting.
TEST(PipelineSchedule, MessagesAreTakenInTheOrderInWhichTheyAreSent) {
  for (const Case& c : all_cases()) {
    for (int stage = 0; stage < c.stages; ++stage) {
      const int neighbor = (stage + 1) % c.stages;
      for (const bool forward : {true, false}) {
        // Forward: from `stage` to its neighbor; backward: from the neighbor to `stage`. Messages
        // are identified by the chunk that sends them.
        const int sender = forward ? stage : neighbor, receiver = forward ? neighbor : stage;
        const int last = c.stages * c.chunks - 1;
        std::vector<std::pair<int, int>> sent, taken;
        for (const PipelineAction& action : schedule_of(c, sender)) {
          const int global = action.chunk * c.stages + sender;
          if (action.forward == forward && global != (forward ? last : 0))
            sent.emplace_back(global, action.micro_batch);
        }
        for (const PipelineAction& action : schedule_of(c, receiver)) {
          const int global = action.chunk * c.stages + receiver;
          if (action.forward == forward && global != (forward ? 0 : last))
            taken.emplace_back(forward ? global - 1 : global + 1, action.micro_batch);
        }
        EXPECT_EQ(sent, taken) << name_of(c) << ", from stage " << sender << " to " << receiver;
      }
    }
  }
}

// Narayanan et al. 2021, sections 2.2.1 and 2.2.2: (p - 1) / m, with v chunks (p - 1) / (v m).
TEST(PipelineSchedule, TheBubbleIsThatOfThePaper) {
  for (const Case& c : all_cases()) {
    const double expected = static_cast<double>(c.stages - 1) / (c.chunks * c.micro_batches);
    // Rounding errors of some hundred additions.
    EXPECT_NEAR(Simulation(c).bubble(), expected, 1e-9) << name_of(c);
  }
}

TEST(PipelineSlots, OneForwardOneBackwardHoldsNoMoreThanTheStagesBehind) {
  for (const Case& c : all_cases()) {
    for (int stage = 0; stage < c.stages; ++stage) {
      const std::vector<int> slots = max_in_flight(schedule_of(c, stage), c.chunks);
      ASSERT_EQ(slots.size(), static_cast<std::size_t>(c.chunks));
      if (c.kind == PipelineKind::interleaved) continue;
      EXPECT_EQ(slots[0], c.kind == PipelineKind::gpipe
                              ? c.micro_batches
                              : std::min(c.stages - stage, c.micro_batches))
          << name_of(c);
    }
  }
}

// A chunk has 1/v of the memory of a stage. Narayanan et al. 2021, section 2.2.2: interleaving
// raises the peak by at most (p - 1) / (p v).
TEST(PipelineSlots, InterleavingHoldsLittleMore) {
  for (const Case& c : all_cases()) {
    if (c.kind != PipelineKind::interleaved || c.chunks == 1) continue;
    for (int stage = 0; stage < c.stages; ++stage) {
      const auto schedule = schedule_of(c, stage);
      int held = 0, most = 0;
      for (const PipelineAction& action : schedule)
        most = std::max(most, held += action.forward ? 1 : -1);
      EXPECT_LE(most, c.stages * c.chunks + c.stages - 1) << name_of(c);
      const std::vector<int> slots = max_in_flight(schedule, c.chunks);
      EXPECT_GE(std::accumulate(slots.begin(), slots.end(), 0), most) << name_of(c);
      EXPECT_LE(*std::max_element(slots.begin(), slots.end()),
                std::min(2 * c.stages, c.micro_batches))
          << name_of(c);
    }
  }
}

double cost_of(const std::vector<double>& costs, const std::vector<int>& bounds) {
  double most = 0;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
    most = std::max(most,
                    std::accumulate(costs.begin() + bounds[i], costs.begin() + bounds[i + 1], 0.0));
  return most;
}

/// All ways to cut, in lexicographic order: the first of the cheapest is the earliest cut.
std::vector<int> best_of_all(const std::vector<double>& costs, int chunks) {
  std::vector<int> best;
  std::vector<int> bounds(static_cast<std::size_t>(chunks) + 1, 0);
  const auto place = [&](auto&& self, std::size_t index) -> void {
    if (index == static_cast<std::size_t>(chunks)) {
      bounds[index] = static_cast<int>(costs.size());
      if (bounds[index] > bounds[index - 1] &&
          (best.empty() || cost_of(costs, bounds) < cost_of(costs, best)))
        best = bounds;
      return;
    }
    for (bounds[index] = bounds[index - 1] + 1; bounds[index] < static_cast<int>(costs.size());
         ++bounds[index])
      self(self, index + 1);
  };
  place(place, 1);
  return best;
}

TEST(PipelineBalance, IsTheEarliestOfTheCheapestCuts) {
  const std::vector<std::vector<double>> chains = {{1},
                                                   {1, 1, 1, 1, 1, 1, 1},
                                                   {0.1, 0.1, 0.1, 0.1, 0.1, 0.1},
                                                   {9, 1, 1, 1, 1, 1, 1},
                                                   {1, 1, 1, 1, 1, 1, 9},
                                                   {3, 1, 4, 1, 5, 9, 2, 6, 5},
                                                   {0, 0, 0, 5, 0, 0},
                                                   {0.5, 2, 2, 2, 2, 3.5}};
  for (const auto& costs : chains) {
    for (int chunks = 1; chunks <= static_cast<int>(costs.size()); ++chunks)
      EXPECT_EQ(balance_chunks(costs, chunks), best_of_all(costs, chunks))
          << costs.size() << " blocks in " << chunks << " chunks, the last of cost "
          << costs.back();
  }
}

TEST(PipelineBalance, EqualBlocksAreCutEvenly) {
  EXPECT_EQ(balance_chunks(std::vector<double>(12, 0.7), 4), (std::vector<int>{0, 3, 6, 9, 12}));
  EXPECT_EQ(balance_chunks(std::vector<double>(4, 1), 4), (std::vector<int>{0, 1, 2, 3, 4}));
}

/// Returns the schedule for which a short one stands.
std::vector<PipelineAction> whole(const ShortSchedule& part) {
  std::vector<PipelineAction> actions(part.actions.begin(),
                                      part.actions.begin() + static_cast<std::ptrdiff_t>(part.end));
  for (std::int64_t round = 1; round < part.times; ++round)
    for (std::size_t i = part.begin; i < part.end; ++i) {
      actions.push_back(part.actions[i]);
      actions.back().micro_batch += static_cast<int>(round * part.period_micro_batches);
    }
  for (std::size_t i = part.end; i < part.actions.size(); ++i) {
    actions.push_back(part.actions[i]);
    actions.back().micro_batch += static_cast<int>(part.left_out);
  }
  return actions;
}

TEST(ShortSchedule, StandsForTheWholeOne) {
  std::int64_t left_out = 0;
  for (const PipelineKind kind :
       {PipelineKind::gpipe, PipelineKind::one_forward_one_backward, PipelineKind::interleaved})
    for (int stages = 1; stages <= 5; ++stages)
      for (const int chunks : {1, 2, 3})
        for (const int groups : {1, 2, 3, 8, 40}) {
          if (kind != PipelineKind::interleaved && chunks > 1) continue;
          const Case c{kind, stages, chunks, groups * stages};
          for (int stage = 0; stage < stages; ++stage) {
            const ShortSchedule part = shorten(kind, stages, stage, chunks, c.micro_batches);
            EXPECT_EQ(whole(part), schedule_of(c, stage)) << name_of(c) << ", stage " << stage;
            // The last micro-batches use the same buffers.
            for (const int buffers : max_in_flight(schedule_of(c, stage), chunks))
              EXPECT_EQ(part.left_out % buffers, 0) << name_of(c);
            EXPECT_EQ(part.left_out, (part.times - 1) * part.period_micro_batches);
            left_out += part.left_out;
          }
        }
  EXPECT_GT(left_out, 1000);
}

}  // namespace
}  // namespace trireme::parallel
