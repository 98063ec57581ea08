// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::monitor {

/// Records when one rank does what, in selected steps. chrome://tracing and Perfetto show the
/// result. A default-constructed object records nothing.
class Trace {
 public:
  Trace() = default;
  /// Records steps `first` to `last`, both included. Allocates memory for `max_events` events here
  /// and nowhere else; if there are more, the latest are kept.
  Trace(int rank, std::int64_t first, std::int64_t last, std::size_t max_events = 65536);

  /// Starts step `step` (from 1).
  void begin_step(std::int64_t step);
  /// Returns whether the current step is recorded.
  bool is_recording() const { return is_recording_; }
  /// Records an action from `begin_seconds` to `end_seconds` of monotonic_seconds(), one clock for
  /// all ranks of a host. Keeps the first 23 letters of the name. `micro_batch`, `chunk`: -1 if not
  /// applicable.
  void record_event(std::string_view name, double begin_seconds, double end_seconds,
                    int micro_batch = -1, int chunk = -1);
  /// Records an action that overlaps with others, such as the reduction of a bucket.
  void record_async_event(std::string_view name, double begin_seconds, double end_seconds);
  /// Records that the rank waited for the exchange `name`.
  void record_wait(std::string_view name, double begin_seconds, double end_seconds);

  /// Returns the events as JSON objects separated by commas, without the array, in the Trace Event
  /// Format. Empty if there are none.
  /// - record_event(): complete events ("ph": "X").
  /// - record_async_event(): asynchronous pairs ("b" and "e").
  /// - record_wait(): complete events "wait" on a thread of their own (1, named "waits"), with
  ///   argument "for".
  ///
  /// The rank is the process number; times are in microseconds.
  std::string json() const;

 private:
  struct Event {
    std::array<char, 24> name;
    double begin_seconds, end_seconds;
    std::int64_t step;
    int micro_batch, chunk;
    enum class Kind : std::uint8_t { action, exchange, wait } kind;
  };
  void append(std::string_view name, const Event& event);
  std::vector<Event> ring_;
  std::size_t recorded_count_ = 0;  ///< includes events that later ones have overwritten
  std::int64_t first_ = 0, last_ = -1, step_ = 0;
  int rank_ = 0;
  bool is_recording_ = false;
};

/// Writes one trace file from the json() of all ranks. The file is replaced atomically. Throws
/// Failure, or InputError if the path is wrong.
void write_trace(const std::string& path, std::span<const std::string> parts);

}  // namespace trireme::monitor
