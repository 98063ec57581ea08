// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/trace.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"

namespace trireme::monitor {

Trace::Trace(int rank, std::int64_t first, std::int64_t last, std::size_t max_events)
    : ring_(max_events), first_(first), last_(last), rank_(rank) {
  TRIREME_EXPECT(max_events > 0);
}

void Trace::begin_step(std::int64_t step) {
  step_ = step;
  is_recording_ = step >= first_ && step <= last_;
}

void Trace::record_event(std::string_view name, double begin_seconds, double end_seconds,
                         int micro_batch, int chunk) {
  append(name, {{}, begin_seconds, end_seconds, step_, micro_batch, chunk, Event::Kind::action});
}

void Trace::record_async_event(std::string_view name, double begin_seconds, double end_seconds) {
  append(name, {{}, begin_seconds, end_seconds, step_, -1, -1, Event::Kind::exchange});
}

void Trace::record_wait(std::string_view name, double begin_seconds, double end_seconds) {
  append(name, {{}, begin_seconds, end_seconds, step_, -1, -1, Event::Kind::wait});
}

void Trace::append(std::string_view name, const Event& event) {
  if (!is_recording_) return;
  Event& kept = ring_[recorded_count_++ % ring_.size()];
  kept = event;
  name.copy(kept.name.data(), kept.name.size() - 1);
}

std::string Trace::json() const {
  std::string text;
  bool has_waits = false;
  const std::size_t kept = std::min(recorded_count_, ring_.size());
  for (std::size_t i = recorded_count_ - kept; i < recorded_count_; ++i) {
    const Event& event = ring_[i % ring_.size()];
    const std::string name = nlohmann::json(event.name.data())
                                 .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (event.kind == Event::Kind::exchange) {
      const auto end = [&](char phase, double seconds) {
        return fmt::format(R"({{"name": {}, "cat": "exchange", "ph": "{}", "id": "{}.{}", )"
                           R"("pid": {}, "tid": 0, "ts": {:.3f}, "args": {{"step": {}}}}})",
                           name, phase, rank_, i, rank_, seconds * 1e6, event.step);
      };
      text += fmt::format("{}{},\n{}", text.empty() ? "" : ",\n", end('b', event.begin_seconds),
                          end('e', event.end_seconds));
      continue;
    }
    // Waits have a thread of their own, since an action may contain several.
    const bool is_wait = event.kind == Event::Kind::wait;
    has_waits = has_waits || is_wait;
    text += fmt::format(R"({}{{"name": {}, "ph": "X", "pid": {}, "tid": {}, )"
                        R"("ts": {:.3f}, "dur": {:.3f}, "args": {{"step": {})",
                        text.empty() ? "" : ",\n", is_wait ? "\"wait\"" : name, rank_,
                        is_wait ? 1 : 0, event.begin_seconds * 1e6,
                        (event.end_seconds - event.begin_seconds) * 1e6, event.step);
    if (is_wait) text += fmt::format(R"(, "for": {})", name);
    if (event.micro_batch >= 0) text += fmt::format(R"(, "micro_batch": {})", event.micro_batch);
    if (event.chunk >= 0) text += fmt::format(R"(, "chunk": {})", event.chunk);
    text += "}}";
  }
  if (has_waits)
    text += fmt::format(
        ",\n"
        R"({{"name": "thread_name", "ph": "M", "pid": {}, "tid": 1, "args": {{"name": "waits"}}}})",
        rank_);
  return text;
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
