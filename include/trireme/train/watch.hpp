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
struct Sign {
  std::int64_t step = 0;
  double still_seconds = 0;    ///< since its main thread last came by anything
  double allowed_seconds = 0;  ///< how long it may stand there
  std::int64_t waiting = 0;    ///< 1: it waits for other ranks
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
  explicit Deadlines(double shortest_seconds) : shortest_(shortest_seconds) {}
  void took(const std::string& phase, double seconds);
  double of(const std::string& phase) const;

 private:
  double shortest_;
  std::map<std::string, double> longest_;
};

/// What the main thread is at, told by it and read by the watchdog's thread.
class Activity {
 public:
  Activity(double shortest_seconds, double now) : deadlines_(shortest_seconds), since_(now) {}
  /// The main thread comes by a phase, also by the one it is in.
  void enter(const std::string& phase, std::int64_t step, double now);
  /// This whole process stood still for that time (a suspended job, a debugger): nobody's fault.
  void forgive(double seconds);
  /// A step begins; `checkpoint`: the step of the newest one, -1: none.
  void step_begins(std::int64_t step, std::int64_t checkpoint);
  std::int64_t checkpoint() const;
  /// The last step made to its end.
  std::int64_t finished() const;
  /// Without host and operation.
  Sign sign(double now) const;

 private:
  mutable std::mutex mutex_;
  Deadlines deadlines_;
  std::string phase_ = "start";
  std::int64_t step_ = 0, begun_ = 0, checkpoint_ = -1;
  double since_;
};

/// Judges the signs of all ranks. A rank that was never heard is not watched: the network may not
/// carry its signs.
class Watch {
 public:
  struct Lost {
    int rank = 0;
    std::string what;  ///< "rank 2 on node17 gives no sign of life for 61 s (last known: step 17,
                       ///< phase step)"
  };

  /// `silence_seconds`: how long a rank may be unheard.
  Watch(int ranks, double silence_seconds, double now)
      : seen_(static_cast<std::size_t>(ranks)), silence_(silence_seconds), looked_(now) {}
  void heard(int rank, const Sign& sign, double now);
  /// It ends in good order: watched no more.
  void left(int rank);
  /// To be called again and again; the rank to blame once one is silent, or stands still, for too
  /// long. Of several that stand still it is one that waits for nobody, or else the one that came
  /// to stand first; none of them as long as another may fall silent. After a long time without a
  /// look the watching process itself was stopped: then nobody is blamed for as long as a rank may
  /// be unheard.
  std::optional<Lost> look(double now);
  /// Where each rank was when it was last heard, a line each.
  std::vector<std::string> last_known(double now) const;

 private:
  struct Seen {
    Sign sign;
    double at = 0;
    bool watched = false;
  };
  std::vector<Seen> seen_;
  double silence_, looked_, quiet_until_ = 0;
};

}  // namespace trireme::train
