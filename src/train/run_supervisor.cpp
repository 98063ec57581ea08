// Supervision of a run: forwards phases to the watchdog and to injected faults, reports health
// events and slow ranks, compares replicas. Called by the training loop before and after each step.
#include "trireme/train/run_supervisor.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/train/replica_check.hpp"

namespace trireme::train {

RunSupervisor::RunSupervisor(Run& run, const RunState& state, const std::vector<std::string>& hosts,
                             Watchdog& watchdog, FaultInjector& faults, Recorder& recorder,
                             Log& log)
    : run_(run),
      hosts_(hosts),
      watchdog_(watchdog),
      recorder_(recorder),
      log_(log),
      health_(run.deck.health, state.health),
      slow_ranks_(run.mesh.shape),
      step_(state.step),
      checkpoint_step_(state.step),
      faults_(faults),
      phase_observer_([this](const char* phase) { on_phase(phase); }) {
  if (run.deck.health.compare_replicas)
    compare_every_.emplace(*run.deck.health.compare_replicas, run.layout.scale);
}

void RunSupervisor::on_phase(const std::string& phase) {
  if (phase == "checkpoint-begin") checkpoint_step_ = step_.load();
  const std::int64_t step = phase.starts_with("checkpoint") ? checkpoint_step_ : step_;
  if (std::this_thread::get_id() == main_thread_) watchdog_.enter_phase(phase, step);
  faults_.on_phase(phase, step, *run_.replica);
}

void RunSupervisor::begin_step(std::int64_t step) {
  step_ = step;
  watchdog_.begin_step(step);
}

void RunSupervisor::end_step(RunState& state, const StepResult& result,
                             const std::vector<ops::StepStatus>& statuses, bool row) {
  for (const Health::Event& event : health_.observe(result)) {
    recorder_.event(state, event.event, event.detail);
    if (event.is_logged) log_.warn("step {}: {}", state.step, event.detail);
  }
  state.health = health_.state();
  slow_ranks_.add(statuses, result.times.total);
  if (!row) return;
  const std::optional<std::vector<SlowRankDetector::SlowRank>> found = slow_ranks_.detect();
  if (!found) return;
  std::vector<int> ranks;
  for (const SlowRankDetector::SlowRank& slow : *found) {
    const std::string detail =
        fmt::format("{} is slow: busy {:.4f} s per step, while the median of its stage is {:.4f} s",
                    describe_rank(slow.rank), slow.busy_seconds, slow.median_seconds);
    recorder_.event(state, "slow_rank", detail);
    if (std::find(last_slow_ranks_.begin(), last_slow_ranks_.end(), slow.rank) ==
        last_slow_ranks_.end())
      log_.warn("step {}: {}", state.step, detail);
    ranks.push_back(slow.rank);
  }
  last_slow_ranks_ = std::move(ranks);
}

std::string RunSupervisor::describe_differing_replicas() {
  if (!compare_every_) return "";
  run_.engine.quiesce();
  const std::vector<int> ranks = differing_ranks(run_.mesh.shape, replica_hashes(*run_.replica));
  if (ranks.empty()) return "";
  std::string names;
  constexpr std::size_t max_names = 8;
  for (std::size_t i = 0; i < ranks.size() && i < max_names; ++i)
    names += (i > 0 ? ", " : "") + describe_rank(ranks[i]);
  if (ranks.size() > max_names) names += fmt::format(" and {} more", ranks.size() - max_names);
  return fmt::format("silent data corruption: weights of replicas differ at {}", names);
}

std::string RunSupervisor::describe_rank(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts_[static_cast<std::size_t>(rank)]);
}

}  // namespace trireme::train
