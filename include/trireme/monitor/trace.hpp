#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::monitor {

/// What one rank does when, in some steps of a run; read by chrome://tracing and Perfetto. A
/// default-made one records nothing.
class Trace {
 public:
  Trace() = default;
  /// Records steps `first` to `last`, both included. Room for `most_events` is taken here and
  /// nowhere else; of more the latest are kept.
  Trace(int rank, std::int64_t first, std::int64_t last, std::size_t max_events = 65536);

  /// Step `step` (from 1) begins.
  void begin_step(std::int64_t step);
  /// Whether the step that began is one of those recorded.
  bool is_recording() const { return is_recording_; }
  /// Something that took from `begin_seconds` to `end_seconds` of monotonic_seconds(), one clock
  /// for all ranks of a host. Of the name the first 23 letters are kept. `micro_batch`, `chunk`: -1
  /// where there is none.
  void record_event(std::string_view name, double begin_seconds, double end_seconds,
                    int micro_batch = -1, int chunk = -1);
  /// The same of what goes on beside the events and beside others of its kind.
  void record_async_event(std::string_view name, double begin_seconds, double end_seconds);

  /// The events as JSON objects with commas between, no array around: complete events ("ph": "X"),
  /// the rank as process, times in microseconds (Trace Event Format); what goes on beside as
  /// asynchronous ones ("b" and "e"). Empty where nothing was recorded.
  std::string json() const;

 private:
  struct Event {
    std::array<char, 24> name;
    double begin_seconds, end_seconds;
    std::int64_t step;
    int micro_batch, chunk;
    bool is_async;
  };
  void append(std::string_view name, const Event& event);
  std::vector<Event> ring_;
  std::size_t recorded_count_ = 0;  ///< in all, also those that later ones have taken the place of
  std::int64_t first_ = 0, last_ = -1, step_ = 0;
  int rank_ = 0;
  bool is_recording_ = false;
};

/// One trace file of the json() of all ranks; the file is replaced at once. Throws Failure.
void write_trace(const std::string& path, std::span<const std::string> parts);

}  // namespace trireme::monitor
