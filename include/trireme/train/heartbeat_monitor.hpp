#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::train {

/// What a rank says of itself: plain bytes, as they travel.
struct RankHeartbeat {
  std::int64_t step = 0;
  double stalled_seconds = 0;   ///< since its main thread last came by anything
  double deadline_seconds = 0;  ///< how long it may stand there
  std::int64_t waiting = 0;     ///< 1: it waits for other ranks
  std::array<char, 24> phase{};
  std::array<char, 64> host{};
  std::array<char, 256> operation{};  ///< the collective or message that it waits for
};

/// Copies as much of a text as there is room for, and a zero.
template <std::size_t size>
void set_text(std::array<char, size>& to, std::string_view text) {
  to[text.copy(to.data(), size - 1)] = '\0';
}

/// How long each phase may take: many times the longest seen so far, and never less than the
/// shortest deadline; what writes a checkpoint, and what has not been seen to its end yet, gets
/// more. The phases "start" and "end" have no deadline.
class Deadlines {
 public:
  explicit Deadlines(double min_seconds) : min_seconds_(min_seconds) {}
  void record(const std::string& phase, double seconds);
  double seconds_for(const std::string& phase) const;

 private:
  double min_seconds_;
  std::map<std::string, double> max_seconds_;
};

/// What the main thread is at, told by it and read by the watchdog's thread.
class MainThreadActivity {
 public:
  MainThreadActivity(double min_seconds, double now) : deadlines_(min_seconds), phase_start_(now) {}
  /// The main thread comes by a phase, also by the one it is in.
  void enter_phase(const std::string& phase, std::int64_t step, double now);
  /// This whole process stood still for that time (a suspended job, a debugger): nobody's fault.
  void exclude_pause(double seconds);
  /// A step begins; `checkpoint`: the step of the newest one, -1: none.
  void begin_step(std::int64_t step, std::int64_t checkpoint);
  std::int64_t newest_checkpoint() const;
  /// The last step made to its end.
  std::int64_t last_finished_step() const;
  /// Without host and operation.
  RankHeartbeat heartbeat(double now) const;

 private:
  mutable std::mutex mutex_;
  Deadlines deadlines_;
  std::string phase_ = "start";
  std::int64_t step_ = 0, started_step_ = 0, checkpoint_ = -1;
  double phase_start_;
};

/// Judges the signs of all ranks. A rank that was never heard is not watched: the network may not
/// carry its signs.
class HeartbeatMonitor {
 public:
  struct LostRank {
    int rank = 0;
    std::string description;  ///< "rank 2 on node17 gives no sign of life for 61 s (last known:
                              ///< step 17, phase step)"
  };

  /// `silence_seconds`: how long a rank may be unheard.
  HeartbeatMonitor(int ranks, double max_silence_seconds, double now)
      : ranks_(static_cast<std::size_t>(ranks)),
        max_silence_seconds_(max_silence_seconds),
        last_check_(now) {}
  void record(int rank, const RankHeartbeat& sign, double now);
  /// It ends in good order: watched no more.
  void stop_monitoring(int rank);
  /// To be called again and again; the rank to blame once one is silent, or stands still, for too
  /// long. Of several that stand still it is one that waits for nobody, or else the one that came
  /// to stand first; none of them as long as another may fall silent. After a long time without a
  /// look the watching process itself was stopped: then nobody is blamed for as long as a rank may
  /// be unheard.
  std::optional<LostRank> find_lost_rank(double now);
  /// Where each rank was when it was last heard, a line each.
  std::vector<std::string> last_known_states(double now) const;

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
