// SPDX-License-Identifier: Apache-2.0
//
// Trace: a ring of events that several threads append to, and its JSON in the Trace Event Format.
//
// Viewers draw the events of a thread nested into each other, so two that overlap in part would be
// drawn wrong. json() therefore gives each lane as many threads as it has events at the same time.
#include "trireme/monitor/trace.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"

namespace trireme::monitor {
namespace {

constexpr std::string_view waits_lane = "waits";
// The lanes of every rank, from top to bottom; those of groups follow.
constexpr std::array lanes_in_order = {Trace::step_lane,      waits_lane,
                                       Trace::optimizer_lane, std::string_view("readers"),
                                       Trace::copies_lane,    std::string_view("checkpoint")};
// Events that follow each other may overlap so much in nanoseconds, because each is rounded.
constexpr std::int64_t rounding = 2;

std::string_view last_part(std::string_view label) { return label.substr(label.rfind('/') + 1); }

std::string quoted_json(const char* text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Orders lanes as lanes_in_order, then by name.
struct LaneOrder {
  bool operator()(std::string_view a, std::string_view b) const {
    return std::pair(place_of(a), a) < std::pair(place_of(b), b);
  }
  static std::ptrdiff_t place_of(std::string_view lane) {
    return std::find(lanes_in_order.begin(), lanes_in_order.end(), lane) - lanes_in_order.begin();
  }
};

/// An event on a thread of its lane. Times are in nanoseconds.
struct Placed {
  std::size_t event, thread;
  std::int64_t begin, end;
};

/// The events of one lane, and its threads: as many as it has events at the same time.
struct Lane {
  std::vector<Placed> events;
  std::vector<std::int64_t> thread_ends;  ///< Of the last event of each thread.

  /// Places an event on the first thread that is free. Events come in the order of their
  /// beginnings.
  void add(std::size_t event, std::int64_t begin, std::int64_t end) {
    std::size_t thread = 0;
    while (thread < thread_ends.size() && begin < thread_ends[thread] - rounding) ++thread;
    if (thread == thread_ends.size()) thread_ends.push_back(begin);
    begin = std::max(begin, thread_ends[thread]);
    thread_ends[thread] = std::max(begin, end);
    events.push_back({event, thread, begin, thread_ends[thread]});
  }
};

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

/// Returns nanoseconds, at least 0, as the microseconds of the format.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03d}", nanoseconds / 1000, nanoseconds % 1000);
}

/// Returns two objects of metadata, separated by a comma: the name of a process or thread and its
/// place among the others.
std::string metadata(const char* kind, const std::string& ids, const std::string& name,
                     std::size_t place) {
  return fmt::format(
      R"({{"name": "{0}_name", "ph": "M", {1}, "args": {{"name": {2}}}}},)"
      "\n"
      R"({{"name": "{0}_sort_index", "ph": "M", {1}, "args": {{"sort_index": {3}}}}})",
      kind, ids, quoted_json(name.c_str()), place);
}

/// Returns "pid" and "tid" of a thread of a rank. Viewers take threads for those of one machine:
/// numbers differ in all processes, and that of a process is the number of its main thread.
std::string thread_ids(int rank, std::size_t thread) {
  const std::int64_t number =
      thread == 0 ? rank
                  : 1'000'000 + std::int64_t{1000} * rank + static_cast<std::int64_t>(thread);
  return fmt::format(R"("pid": {}, "tid": {})", rank, number);
}

}  // namespace

Trace::Trace(int rank, const std::optional<StepRange>& steps, std::size_t max_events)
    : ring_(steps ? max_events : 0), steps_(steps), rank_(rank) {
  TRIREME_EXPECT(max_events > 0);
}

void Trace::begin_step(std::int64_t step) {
  is_recording_ = steps_ && step >= steps_->first && step <= steps_->last;
  {
    const std::lock_guard lock(mutex_);
    step_ = step;
  }
  if (!is_recording_) {
    ranges_.reset();
  } else if (!ranges_) {
    ranges_.emplace([this](const EndedRange& range) {
      append(Kind::action, range.lane, last_part(range.label), range.begin_seconds,
             range.end_seconds, {});
    });
  }
}

void Trace::record_event(std::string_view lane, std::string_view name, double begin_seconds,
                         double end_seconds, const Items& items) {
  if (is_recording_) append(Kind::action, lane, name, begin_seconds, end_seconds, items);
}

void Trace::record_exchange(std::string_view group, std::string_view name, double begin_seconds,
                            double end_seconds, const Items& items) {
  if (!is_recording_) return;
  std::array<char, lane_letters + 1> lane{};
  constexpr std::string_view prefix = "group ";
  group.copy(std::copy(prefix.begin(), prefix.end(), lane.data()), lane_letters - prefix.size());
  append(Kind::exchange, lane.data(), name, begin_seconds, end_seconds, items);
}

void Trace::record_wait(std::string_view name, double begin_seconds, double end_seconds,
                        const Items& items) {
  if (is_recording_) append(Kind::wait, waits_lane, name, begin_seconds, end_seconds, items);
}

void Trace::append(Kind kind, std::string_view lane, std::string_view name, double begin_seconds,
                   double end_seconds, const Items& items) {
  const std::lock_guard lock(mutex_);
  Event& event = ring_[recorded_count_++ % ring_.size()];
  event = {.begin_seconds = begin_seconds,
           .end_seconds = end_seconds,
           .step = step_,
           .items = items,
           .kind = kind};
  lane.copy(event.lane.data(), event.lane.size() - 1);
  name.copy(event.name.data(), event.name.size() - 1);
}

std::string Trace::json() const {
  // 1. Order the events by their beginnings, and give each one a thread of its lane. The lane
  //    "step" exists always, because its thread is the main thread of the process.
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t kept = std::min(recorded_count_, ring_.size());
    events.assign(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(kept));
  }
  if (events.empty()) return "";
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.begin_seconds, a.end_seconds) < std::pair(b.begin_seconds, b.end_seconds);
  });
  std::map<std::string_view, Lane, LaneOrder> lanes{{step_lane, {}}};
  for (std::size_t i = 0; i < events.size(); ++i)
    lanes[events[i].lane.data()].add(i, nanoseconds(events[i].begin_seconds),
                                     nanoseconds(events[i].end_seconds));
  // 2. Write the names of the rank and of its threads, and the events.
  std::string text = metadata("process", fmt::format(R"("pid": {})", rank_),
                              fmt::format("rank {}", rank_), static_cast<std::size_t>(rank_));
  std::size_t first_thread = 0;
  for (const auto& [name, lane] : lanes) {
    for (std::size_t i = 0; i < lane.thread_ends.size(); ++i)
      text += ",\n" + metadata("thread", thread_ids(rank_, first_thread + i),
                               i == 0 ? std::string(name) : fmt::format("{} {}", name, i + 1),
                               first_thread + i);
    for (const Placed& placed : lane.events)
      text +=
          ",\n" + event_json(events[placed.event], thread_ids(rank_, first_thread + placed.thread),
                             placed.begin, placed.end - placed.begin);
    first_thread += std::max<std::size_t>(lane.thread_ends.size(), 1);
  }
  return text;
}

/// Returns an event as JSON. `begin` and `duration` are in nanoseconds.
std::string Trace::event_json(const Event& event, const std::string& ids, std::int64_t begin,
                              std::int64_t duration) const {
  const std::string name = quoted_json(event.name.data());
  const bool is_wait = event.kind == Kind::wait;
  std::string text = fmt::format(R"({{"name": {}, {}"ph": "X", {}, "ts": {}, "dur": {}, )"
                                 R"("args": {{"step": {})",
                                 is_wait ? "\"wait\"" : name,
                                 event.kind == Kind::exchange ? R"("cat": "exchange", )" : "", ids,
                                 microseconds(begin), microseconds(duration), event.step);
  if (is_wait) text += fmt::format(R"(, "for": {})", name);
  for (const Item& item : event.items) {
    if (item.name.empty()) continue;
    std::string key(item.name);
    std::replace(key.begin(), key.end(), '-', '_');
    text += fmt::format(R"(, "{}": {})", key, item.number);
  }
  return text + "}}";
}

void write_trace(const std::string& path, std::span<const std::string> parts) {
  std::string text = "[\n";
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (text.size() > 2) text += ",\n";
    text += part;
  }
  io::replace_file(path, text + "\n]\n");
}

}  // namespace trireme::monitor
