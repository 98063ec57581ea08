// SPDX-License-Identifier: Apache-2.0
#pragma once

// The logic of the watchdog without threads, network or clock: times are arguments, so tests need
// not wait.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::train {

/// The activity of a rank's main thread. The values are sent between ranks.
enum class MainThreadState : std::int64_t {
  computing,           ///< It waits for no other rank.
  blocked_on_peers,    ///< It waits for a request or call that has started.
  waiting_for_queued,  ///< It waits for a request that is queued behind others.
};

/// The state of a rank in one heartbeat message, sent as plain bytes.
struct RankHeartbeat {
  std::int64_t step = 0;
  double stalled_seconds = 0;   ///< Since the main thread last entered a phase.
  double deadline_seconds = 0;  ///< Deadline of the phase: how long it may take.
  double waiting_seconds = 0;   ///< Since the main thread began to wait for other ranks.
  MainThreadState state = MainThreadState::computing;
  std::array<char, 24> phase{};
  std::array<char, 64> host{};
  /// The operation for which the main thread waits, or else the oldest outstanding request.
  std::array<char, 256> operation{};
};

/// Returns what the main thread does, in words: "blocked on peers for 4.5 s: all_reduce 299 ...".
std::string describe_state(const RankHeartbeat& heartbeat);

/// Copies as much of a text as fits, and a terminating zero.
template <std::size_t size>
void set_text(std::array<char, size>& to, std::string_view text) {
  to[text.copy(to.data(), size - 1)] = '\0';
}

/// Deadlines of the phases of a run: ten times the longest duration so far, and at least the
/// minimum.
///
/// A phase that has not finished yet has five times the minimum, and so have the checkpoint phases.
/// The phase "row", in which a row of batch.ramp begins, is as long as the phase "start".
/// The phases "start" and "end" have no deadline.
class Deadlines {
 public:
  explicit Deadlines(double min_seconds) : min_seconds_(min_seconds) {}
  /// Records the duration of a finished phase.
  void record(const std::string& phase, double seconds);
  /// Multiplies the recorded duration of a phase: from now on it has this many times the work.
  void scale(const std::string& phase, double factor);
  /// Returns the deadline of a phase in seconds.
  double seconds_for(const std::string& phase) const;

 private:
  double min_seconds_;
  std::map<std::string, double> max_seconds_;
};

/// The phase and step of the main thread: written by the main thread, read by the watchdog thread.
class MainThreadActivity {
 public:
  MainThreadActivity(double min_seconds, double now) : deadlines_(min_seconds), phase_start_(now) {}
  /// The main thread enters a phase, possibly the same one again. Ends the previous phase.
  void enter_phase(const std::string& phase, std::int64_t step, double now);
  /// From now on a step has this many times the work.
  void scale_steps(double factor);
  /// Excludes a pause of the whole process (a suspended job, a debugger) from the stalled time.
  void exclude_pause(double seconds);
  /// Notes that a step begins.
  void begin_step(std::int64_t step);
  /// Returns the last finished step.
  std::int64_t last_finished_step() const;
  /// Returns a heartbeat of this state; host and operation are left empty. `part`: of the phase
  /// (PhasePart), may be null. A phase with a part may take two minutes longer than without.
  RankHeartbeat heartbeat(double now, const char* part = nullptr) const;

 private:
  mutable std::mutex mutex_;
  Deadlines deadlines_;
  std::string phase_ = "start";
  std::int64_t step_ = 0, started_step_ = 0;
  double phase_start_;
};

/// Decides from the heartbeats of all ranks whether a rank is lost.
///
/// A rank is lost if no heartbeat arrives for max_silence_seconds, or if it exceeds the deadline of
/// its phase. A rank without any heartbeat so far is not monitored, because the network may not
/// carry them:
///
///   rank 2   heartbeats ... | last heartbeat            (stopped)
///   monitor                 |<---- max_silence_seconds ---->| rank 2 is lost
///
///   rank 1   | enters a phase, then hangs; heartbeats continue
///   rank 0   | enters a phase, waits for rank 1; heartbeats continue
///   monitor  |<---- deadline of the phase ---->| rank 1 is lost: it does not wait for others
class HeartbeatMonitor {
 public:
  struct LostRank {
    int rank = 0;
    /// For example "rank 2 on node17 sent no heartbeat for 61.0 s (last known: step 17, phase
    /// step)".
    std::string description;
    bool is_silent = false;  ///< It sends no heartbeats, so it answers no question either.
  };

  /// `max_silence_seconds`: longest time without a heartbeat. `now` is the current time in seconds.
  HeartbeatMonitor(int ranks, double max_silence_seconds, double now)
      : ranks_(static_cast<std::size_t>(ranks)),
        max_silence_seconds_(max_silence_seconds),
        last_check_(now) {}
  /// Records a heartbeat; from then on the rank is monitored.
  void record(int rank, const RankHeartbeat& sign, double now);
  /// Stops monitoring a rank that ends normally.
  void stop_monitoring(int rank);
  /// Returns the lost rank once one is silent or stalled for too long. Must be called several times
  /// per max_silence_seconds.
  ///
  /// - Among stalled ranks the culprit is one that waits for no other rank, else the one stalled
  ///   longest.
  /// - No stalled rank is reported while another rank may be about to become silent.
  /// - After a long gap between two calls this process itself was stopped. Nobody is lost then for
  ///   another max_silence_seconds.
  std::optional<LostRank> find_lost_rank(double now);
  /// Returns one line per monitored rank with its last known state, for the log.
  std::vector<std::string> last_known_states(double now) const;
  /// Returns the ranks whose requests explain a loss: the lost rank unless it is silent, then the
  /// ranks that wait for others, longest wait first. At most `max_ranks`.
  std::vector<int> ranks_to_inspect(const LostRank& lost, std::size_t max_ranks) const;
  /// Returns the host of a rank; "" before its first heartbeat.
  std::string host_of(int rank) const;

 private:
  struct RankRecord {
    RankHeartbeat heartbeat;
    double received_at = 0;
    bool is_monitored = false;
  };
  std::vector<RankRecord> ranks_;
  double max_silence_seconds_, last_check_, no_report_until_ = 0;
};

}  // namespace trireme::train
