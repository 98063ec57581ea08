#include "trireme/train/guard.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/train/replica_check.hpp"

namespace trireme::train {

Guard::Guard(Run& run, const RunState& state, const std::vector<std::string>& hosts,
             Watchdog* watchdog, Recorder& recorder, Log& log)
    : run_(run),
      hosts_(hosts),
      watchdog_(watchdog),
      recorder_(recorder),
      log_(log),
      health_(run.deck.health, state.health),
      slow_(run.mesh.shape),
      step_(state.step),
      saved_step_(state.step),
      faults_(run.deck.debug.faults, run.mesh.world.rank()),
      listener_([this](const char* phase) { came_by(phase); }) {
  if (run.deck.health.compare_replicas)
    compare_every_.emplace(*run.deck.health.compare_replicas, run.layout.scale);
}

void Guard::came_by(const std::string& phase) {
  if (phase == "checkpoint-begin") saved_step_ = step_.load();
  const std::int64_t step = phase.starts_with("checkpoint") ? saved_step_ : step_;
  if (watchdog_ != nullptr && std::this_thread::get_id() == main_thread_)
    watchdog_->enter(phase, step);
  faults_.at(phase, step, *run_.replica);
}

void Guard::step_begins(std::int64_t step, std::int64_t newest_checkpoint) {
  step_ = step;
  if (watchdog_ != nullptr) watchdog_->step_begins(step, newest_checkpoint);
}

void Guard::step_done(RunState& state, const StepResult& result,
                      const std::vector<ops::StepStatus>& messages, bool row) {
  for (const Health::Event& event : health_.after(result)) {
    recorder_.event(state, event.event, event.detail);
    if (event.says) log_.warn("step {}: {}", state.step, event.detail);
  }
  state.health = health_.state();
  slow_.add(messages, result.times.total);
  if (!row) return;
  const std::optional<std::vector<SlowRanks::Slow>> found = slow_.take();
  if (!found) return;
  std::vector<int> ranks;
  for (const SlowRanks::Slow& slow : *found) {
    const std::string detail = fmt::format(
        "{} is slow: busy for {:.4f} s a step, where others of its stage are for {:.4f} s",
        named(slow.rank), slow.busy_seconds, slow.others_seconds);
    recorder_.event(state, "slow_rank", detail);
    if (std::find(slow_before_.begin(), slow_before_.end(), slow.rank) == slow_before_.end())
      log_.warn("step {}: {}", state.step, detail);
    ranks.push_back(slow.rank);
  }
  slow_before_ = std::move(ranks);
}

std::string Guard::differing_replicas() {
  if (!compare_every_) return "";
  run_.engine.quiesce();
  const std::vector<int> ranks = differing_ranks(run_.mesh.shape, replica_hashes(*run_.replica));
  if (ranks.empty()) return "";
  std::string names;
  constexpr std::size_t most = 8;
  for (std::size_t i = 0; i < ranks.size() && i < most; ++i)
    names += (i > 0 ? ", " : "") + named(ranks[i]);
  if (ranks.size() > most) names += fmt::format(" and {} more", ranks.size() - most);
  return fmt::format("silent data corruption: replicas that should be alike differ at {}", names);
}

std::string Guard::named(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts_[static_cast<std::size_t>(rank)]);
}

}  // namespace trireme::train
