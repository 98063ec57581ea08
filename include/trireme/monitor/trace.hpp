// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/device/profile_range.hpp"
#include "trireme/monitor/options.hpp"

namespace trireme::monitor {

/// Records when one rank does what, in selected steps. chrome://tracing and Perfetto show the
/// result. A default-constructed object records nothing.
///
/// An event belongs to a lane, such as "step" or "readers". The main thread records its own events;
/// those of other threads are the ProfileRanges that name a lane.
class Trace {
 public:
  Trace() = default;
  /// Records `steps`; nothing without them. Allocates memory for `max_events` events here and
  /// nowhere else; if there are more, the latest are kept.
  Trace(int rank, const std::optional<StepRange>& steps, std::size_t max_events = 65536);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Starts step `step` (from 1). ProfileRanges are recorded while a selected step is current.
  void begin_step(std::int64_t step);
  /// Returns whether the current step is recorded.
  bool is_recording() const { return is_recording_; }

  /// Lanes of the main thread.
  static constexpr std::string_view step_lane = "step", optimizer_lane = "optimizer",
                                    copies_lane = "copies";
  /// A number that belongs to an event, such as micro_batch 3. None if `name` is empty.
  struct Item {
    std::string_view name;  ///< A literal.
    std::int64_t number;
  };
  using Items = std::array<Item, 2>;
  /// Records work from `begin_seconds` to `end_seconds` of monotonic_seconds(), one clock for all
  /// ranks of a host. Keeps the first 23 letters of lane and name. The main thread calls it, and
  /// the next two functions.
  void record_event(std::string_view lane, std::string_view name, double begin_seconds,
                    double end_seconds, const Items& items = {});
  /// Records an exchange with the ranks of `group`, which has a lane of its own.
  void record_exchange(std::string_view group, std::string_view name, double begin_seconds,
                       double end_seconds, const Items& items = {});
  /// Records that the rank waited for the exchange `name`, in the lane "waits".
  void record_wait(std::string_view name, double begin_seconds, double end_seconds,
                   const Items& items = {});

  /// Returns the events as JSON objects separated by commas, without the array, in the Trace Event
  /// Format. Empty if there are none.
  ///
  /// All are complete events ("ph": "X"), behind metadata that names processes and threads. The
  /// process is the rank. Each lane is a thread, "step" the main thread; events of a lane that
  /// overlap are spread over several threads. Exchanges have the category "exchange"; waits are
  /// named "wait" and have the argument "for". Times are in microseconds.
  std::string json() const;

 private:
  static constexpr std::size_t lane_letters = 23;
  enum class Kind : std::uint8_t { action, exchange, wait };
  struct Event {
    std::array<char, lane_letters + 1> lane{}, name{};
    double begin_seconds = 0, end_seconds = 0;
    std::int64_t step = 0;
    Items items{};
    Kind kind = Kind::action;
  };
  void append(Kind kind, std::string_view lane, std::string_view name, double begin_seconds,
              double end_seconds, const Items& items);
  std::string event_json(const Event& event, const std::string& ids, std::int64_t begin,
                         std::int64_t duration) const;
  mutable std::mutex mutex_;  ///< of `ring_`, `recorded_count_` and `step_`
  std::vector<Event> ring_;
  std::size_t recorded_count_ = 0;  ///< includes events that later ones have overwritten
  std::optional<StepRange> steps_;
  std::int64_t step_ = 0;
  int rank_ = 0;
  bool is_recording_ = false;
  std::optional<RangeObserver> ranges_;  ///< while steps are recorded
};

/// Writes one trace file from the json() of all ranks. The file is replaced atomically. Throws
/// Failure, or InputError if the path is wrong.
void write_trace(const std::string& path, std::span<const std::string> parts);

}  // namespace trireme::monitor
