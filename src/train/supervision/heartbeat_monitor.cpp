// SPDX-License-Identifier: Apache-2.0
//
// Deadlines, activity of the main thread, and the decision which rank is lost. No thread, no clock,
// no network: watchdog.cpp supplies them.
#include "heartbeat_monitor.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace trireme::train {
namespace {

// A phase may take this many times its longest duration so far. Cold caches, a busy file system or
// another job's load vary less.
constexpr double deadline_factor = 10;
// Multiples of the minimum deadline: for a phase that has not finished yet, and for checkpoints,
// which a slow file system can delay.
constexpr double unknown_phase_factor = 5, checkpoint_factor = 5;
// Trials of algorithms end after a minute.
constexpr double part_seconds = 120;

/// Returns whether a phase writes or reads a checkpoint.
bool moves_checkpoint(const std::string& phase) {
  return phase.starts_with("checkpoint") || phase == "row";
}

std::string describe_place(const RankHeartbeat& heartbeat) {
  return fmt::format("last known: step {}, phase {}", heartbeat.step, heartbeat.phase.data());
}

bool is_waiting(const RankHeartbeat& heartbeat) {
  return heartbeat.state != MainThreadState::computing;
}

}  // namespace

std::string describe_state(const RankHeartbeat& heartbeat) {
  const std::string operation = heartbeat.operation.data();
  if (!is_waiting(heartbeat))
    return "computing" + (operation.empty() ? "" : ", oldest request: " + operation);
  return fmt::format("{} for {:.1f} s: {}",
                     heartbeat.state == MainThreadState::blocked_on_peers
                         ? "blocked on peers"
                         : "waiting for a queued request",
                     heartbeat.waiting_seconds, operation);
}

void Deadlines::record(const std::string& phase, double seconds) {
  double& longest = max_seconds_[phase];
  longest = std::max(longest, seconds);
}

void Deadlines::scale(const std::string& phase, double factor) {
  if (const auto known = max_seconds_.find(phase); known != max_seconds_.end())
    known->second *= factor;
}

double Deadlines::seconds_for(const std::string& phase) const {
  if (phase == "start" || phase == "end") return std::numeric_limits<double>::infinity();
  const double least = min_seconds_ * (moves_checkpoint(phase) ? checkpoint_factor : 1);
  const auto known = max_seconds_.find(phase);
  return known == max_seconds_.end() ? min_seconds_ * unknown_phase_factor
                                     : std::max(least, deadline_factor * known->second);
}

void MainThreadActivity::enter_phase(const std::string& phase, std::int64_t step, double now) {
  const std::lock_guard lock(mutex_);
  deadlines_.record(phase_, now - phase_start_);
  // A row of batch.ramp begins with the work of a start.
  if (phase_ == "start") deadlines_.record("row", now - phase_start_);
  phase_ = phase;
  step_ = step;
  phase_start_ = now;
}

void MainThreadActivity::scale_steps(double factor) {
  const std::lock_guard lock(mutex_);
  deadlines_.scale("step", factor);
}

void MainThreadActivity::exclude_pause(double seconds) {
  const std::lock_guard lock(mutex_);
  phase_start_ += seconds;
}

void MainThreadActivity::begin_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  started_step_ = step;
}

std::int64_t MainThreadActivity::last_finished_step() const {
  const std::lock_guard lock(mutex_);
  return started_step_ - (phase_ == "step" ? 1 : 0);
}

RankHeartbeat MainThreadActivity::heartbeat(double now, const char* part) const {
  const std::lock_guard lock(mutex_);
  RankHeartbeat heartbeat{.step = step_,
                          .stalled_seconds = std::max(0.0, now - phase_start_),
                          .deadline_seconds = deadlines_.seconds_for(phase_)};
  if (part != nullptr) heartbeat.deadline_seconds += part_seconds;
  set_text(heartbeat.phase, part == nullptr ? phase_ : phase_ + ": " + part);
  return heartbeat;
}

void HeartbeatMonitor::record(int rank, const RankHeartbeat& heartbeat, double now) {
  RankRecord& rank_record = ranks_[static_cast<std::size_t>(rank)];
  rank_record = {heartbeat, now, true};
  rank_record.heartbeat.phase.back() = rank_record.heartbeat.host.back() =
      rank_record.heartbeat.operation.back() = '\0';
}

void HeartbeatMonitor::stop_monitoring(int rank) {
  ranks_[static_cast<std::size_t>(rank)].is_monitored = false;
}

std::optional<HeartbeatMonitor::LostRank> HeartbeatMonitor::find_lost_rank(double now) {
  // 1. After a long pause of this process, restart all timers and report no rank for a while.
  const double pause_seconds = now - last_check_;
  last_check_ = now;
  if (pause_seconds > max_silence_seconds_ / 2) {
    for (RankRecord& rank_record : ranks_) rank_record.received_at = now;
    no_report_until_ = now + max_silence_seconds_;  // Other ranks may have waited for this process.
  }
  if (now < no_report_until_) return std::nullopt;
  const auto stalled_seconds = [&](const RankRecord& rank_record) {
    return rank_record.heartbeat.stalled_seconds + (now - rank_record.received_at);
  };
  const auto lost = [&](const RankRecord& rank_record, const std::string& what, bool is_silent) {
    const int rank = static_cast<int>(&rank_record - ranks_.data());
    return LostRank{rank,
                    fmt::format("rank {} on {} {} ({})", rank, rank_record.heartbeat.host.data(),
                                what, describe_place(rank_record.heartbeat)),
                    is_silent};
  };
  // 2. Find a silent rank, or the rank stalled longest beyond its deadline.
  const RankRecord* overdue = nullptr;
  bool heartbeat_is_late = false;
  for (const RankRecord& rank_record : ranks_) {
    if (!rank_record.is_monitored) continue;
    heartbeat_is_late |= now - rank_record.received_at > max_silence_seconds_ / 2;
    if (now - rank_record.received_at > max_silence_seconds_)
      return lost(rank_record,
                  fmt::format("sent no heartbeat for {:.1f} s", now - rank_record.received_at),
                  true);
    if (stalled_seconds(rank_record) > rank_record.heartbeat.deadline_seconds &&
        (overdue == nullptr || stalled_seconds(rank_record) > stalled_seconds(*overdue)))
      overdue = &rank_record;
  }
  if (overdue == nullptr || heartbeat_is_late)
    return std::nullopt;  // A rank that waits for a silent rank may exceed its deadline first.
  // A rank that waits for the culprit may exceed its deadline first: consider all ranks stalled for
  // at least half as long.
  const RankRecord* culprit = overdue;
  for (const RankRecord& rank_record : ranks_) {
    if (!rank_record.is_monitored || stalled_seconds(rank_record) < stalled_seconds(*overdue) / 2)
      continue;
    const bool worse = is_waiting(rank_record.heartbeat) != is_waiting(culprit->heartbeat)
                           ? is_waiting(culprit->heartbeat)
                           : stalled_seconds(rank_record) > stalled_seconds(*culprit);
    if (worse) culprit = &rank_record;
  }
  const std::string operation = culprit->heartbeat.operation.data();
  return lost(
      *culprit,
      fmt::format("stalled for {:.1f} s{}", stalled_seconds(*culprit),
                  operation.empty() || !is_waiting(culprit->heartbeat) ? "" : " in " + operation),
      false);
}

std::vector<std::string> HeartbeatMonitor::last_known_states(double now) const {
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankRecord& rank_record = ranks_[rank];
    if (rank_record.received_at == 0) continue;
    lines.push_back(
        fmt::format("rank {} on {}: {}; for {:.1f} s when last heard {:.1f} s ago; {}", rank,
                    rank_record.heartbeat.host.data(), describe_place(rank_record.heartbeat),
                    rank_record.heartbeat.stalled_seconds, now - rank_record.received_at,
                    describe_state(rank_record.heartbeat)));
  }
  return lines;
}

std::vector<int> HeartbeatMonitor::ranks_to_inspect(const LostRank& lost,
                                                    std::size_t max_ranks) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const RankRecord& rank_record = ranks_[static_cast<std::size_t>(rank)];
    if (rank != lost.rank && rank_record.is_monitored && is_waiting(rank_record.heartbeat))
      ranks.push_back(rank);
  }
  const auto wait_begin = [&](int rank) {
    const RankRecord& rank_record = ranks_[static_cast<std::size_t>(rank)];
    return rank_record.received_at - rank_record.heartbeat.waiting_seconds;
  };
  std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return std::pair(wait_begin(a), a) < std::pair(wait_begin(b), b);
  });
  if (!lost.is_silent) ranks.insert(ranks.begin(), lost.rank);
  ranks.resize(std::min(ranks.size(), max_ranks));
  return ranks;
}

std::string HeartbeatMonitor::host_of(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)].heartbeat.host.data();
}

}  // namespace trireme::train
