#include "trireme/train/watch.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace trireme::train {
namespace {

// Steps and writes of one run differ by cold caches, a busy file system, a neighbour's job: by less
// than this.
constexpr double times_the_longest = 10;
// Of the shortest deadline: for the first pass of a phase, of which nothing is known, and for what
// a slow file system holds up.
constexpr double first_factor = 5, checkpoint_factor = 5;

bool writes_checkpoint(const std::string& phase) { return phase.starts_with("checkpoint"); }

std::string place_of(const Sign& sign) {
  return fmt::format("last known: step {}, phase {}", sign.step, sign.phase.data());
}

}  // namespace

void Deadlines::took(const std::string& phase, double seconds) {
  double& longest = longest_[phase];
  longest = std::max(longest, seconds);
}

double Deadlines::of(const std::string& phase) const {
  if (phase == "start" || phase == "end") return std::numeric_limits<double>::infinity();
  const double least = shortest_ * (writes_checkpoint(phase) ? checkpoint_factor : 1);
  const auto known = longest_.find(phase);
  return known == longest_.end() ? shortest_ * first_factor
                                 : std::max(least, times_the_longest * known->second);
}

void Activity::enter(const std::string& phase, std::int64_t step, double now) {
  const std::lock_guard lock(mutex_);
  deadlines_.took(phase_, now - since_);
  phase_ = phase;
  step_ = step;
  since_ = now;
}

void Activity::forgive(double seconds) {
  const std::lock_guard lock(mutex_);
  since_ += seconds;
}

void Activity::step_begins(std::int64_t step, std::int64_t checkpoint) {
  const std::lock_guard lock(mutex_);
  begun_ = step;
  checkpoint_ = checkpoint;
}

std::int64_t Activity::finished() const {
  const std::lock_guard lock(mutex_);
  return begun_ - (phase_ == "step" ? 1 : 0);
}

std::int64_t Activity::checkpoint() const {
  const std::lock_guard lock(mutex_);
  return checkpoint_;
}

Sign Activity::sign(double now) const {
  const std::lock_guard lock(mutex_);
  Sign sign{.step = step_,
            .still_seconds = std::max(0.0, now - since_),
            .allowed_seconds = deadlines_.of(phase_)};
  set_text(sign.phase, phase_);
  return sign;
}

void Watch::heard(int rank, const Sign& sign, double now) {
  Seen& seen = seen_[static_cast<std::size_t>(rank)];
  seen = {sign, now, true};
  seen.sign.phase.back() = seen.sign.host.back() = seen.sign.operation.back() = '\0';
}

void Watch::left(int rank) { seen_[static_cast<std::size_t>(rank)].watched = false; }

std::optional<Watch::Lost> Watch::look(double now) {
  const double gap = now - looked_;
  looked_ = now;
  if (gap > silence_ / 2) {
    for (Seen& seen : seen_) seen.at = now;
    quiet_until_ = now + silence_;  // the others may have waited for this process
  }
  if (now < quiet_until_) return std::nullopt;
  const auto still = [&](const Seen& seen) { return seen.sign.still_seconds + (now - seen.at); };
  const auto lost = [&](const Seen& seen, const std::string& what) {
    const int rank = static_cast<int>(&seen - seen_.data());
    return Lost{rank, fmt::format("rank {} on {} {} ({})", rank, seen.sign.host.data(), what,
                                  place_of(seen.sign))};
  };
  const Seen* overdue = nullptr;
  bool signs_missing = false;
  for (const Seen& seen : seen_) {
    if (!seen.watched) continue;
    signs_missing |= now - seen.at > silence_ / 2;
    if (now - seen.at > silence_)
      return lost(seen, fmt::format("gives no sign of life for {:.1f} s", now - seen.at));
    if (still(seen) > seen.sign.allowed_seconds &&
        (overdue == nullptr || still(seen) > still(*overdue)))
      overdue = &seen;
  }
  if (overdue == nullptr || signs_missing)
    return std::nullopt;  // who waits for a rank that has fallen silent may be over its deadline
                          // first
  // Whoever waits for it may be over the deadline first.
  const Seen* culprit = overdue;
  for (const Seen& seen : seen_) {
    if (!seen.watched || still(seen) < still(*overdue) / 2) continue;
    const bool worse = seen.sign.waiting != culprit->sign.waiting ? culprit->sign.waiting != 0
                                                                  : still(seen) > still(*culprit);
    if (worse) culprit = &seen;
  }
  const std::string operation = culprit->sign.operation.data();
  return lost(
      *culprit,
      fmt::format("stands still for {:.1f} s{}", still(*culprit),
                  operation.empty() || culprit->sign.waiting == 0 ? "" : " in " + operation));
}

std::vector<std::string> Watch::last_known(double now) const {
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < seen_.size(); ++rank) {
    const Seen& seen = seen_[rank];
    if (seen.at == 0) continue;
    const std::string operation = seen.sign.operation.data();
    lines.push_back(fmt::format(
        "rank {} on {}: {}; there for {:.1f} s when heard {:.1f} s ago; {}{}", rank,
        seen.sign.host.data(), place_of(seen.sign), seen.sign.still_seconds, now - seen.at,
        seen.sign.waiting != 0 ? "waiting" : "at work", operation.empty() ? "" : ": " + operation));
  }
  return lines;
}

}  // namespace trireme::train
