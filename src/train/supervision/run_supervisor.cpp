// SPDX-License-Identifier: Apache-2.0
//
// Supervision of a run: forwards phases to the watchdog and to injected faults, reports health
// events and slow ranks, compares replicas. Called by the training loop before and after each step.
#include "run_supervisor.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "replica_check.hpp"
#include "trireme/base/host.hpp"
#include "trireme/device/hardware.hpp"

namespace trireme::train {

RunSupervisor::RunSupervisor(Run& run, const RunState& state, const std::vector<std::string>& hosts,
                             RankSensors& sensors, Watchdog& watchdog, FaultInjector& faults,
                             Recorder& recorder, Log& log)
    : run_(run),
      hosts_(hosts),
      sensors_(sensors),
      watchdog_(watchdog),
      recorder_(recorder),
      log_(log),
      health_(run.deck.health, state.health),
      reports_(run.mesh.world, run.engine),
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

void RunSupervisor::end_step(RunState& state, const StepResult& result, bool row_follows) {
  // 1. Health.
  for (const Health::Event& event : health_.observe(result)) {
    recorder_.event(state, event.event, event.detail);
    if (event.is_logged) log_.warn("step {}: {}", state.step, event.detail);
  }
  state.health = health_.state();
  // 2. Reports that were posted after the step before.
  if (reports_.are_under_way()) read_reports(state);
  // 3. One step is not enough to find a slow rank: it stays in the window.
  busy_.add(result.busy_seconds, result.times.total);
  if (!row_follows) return;
  RankReport report = own_report();
  if (busy_.steps() > 1) {
    report.busy_seconds = busy_.busy_seconds();
    report.step_seconds = busy_.step_seconds();
    busy_ = {};
  }
  reports_.post(report);
}

void RunSupervisor::end_run(const RunState& state) {
  if (reports_.are_under_way()) read_reports(state);
  sensors_.read();
  reports_.post(own_report());
  read_reports(state);
}

RankReport RunSupervisor::own_report() {
  return {.device_bytes = memory_in_use(run_.device).value_or(-1),
          .host_bytes = resident_bytes(),
          .sensors = sensors_.latest()};
}

void RunSupervisor::read_reports(const RunState& state) {
  const std::span<const RankReport> reports = reports_.wait();
  if (run_.mesh.world.rank() == 0) recorder_.set_rank_figures(figures_of(reports), hosts_);
  if (reports[0].busy_seconds >= 0) report_slow_ranks(state, reports);
}

/// Names each slow rank in an event. Warns of new ones.
void RunSupervisor::report_slow_ranks(const RunState& state, std::span<const RankReport> reports) {
  std::vector<double> busy_seconds;
  for (const RankReport& report : reports) busy_seconds.push_back(report.busy_seconds);
  std::vector<int> ranks;
  for (const SlowRank& slow :
       find_slow_ranks(run_.mesh.shape, busy_seconds, reports[0].step_seconds)) {
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
