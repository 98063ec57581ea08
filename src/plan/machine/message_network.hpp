// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme::plan {

/// Messages between pipeline stages in virtual time.
///
/// Each stage has two links, to its node and to other nodes, each with the full rate in both
/// directions. Messages that use the same direction of a link at the same time share its rate
/// equally, and a message is as fast as the slower of its two ends. Messages from one stage to
/// another run one after the other.
class MessageNetwork {
 public:
  explicit MessageNetwork(int stages) : directions_(4 * static_cast<std::size_t>(stages)) {}

  /// Sends a message that takes some seconds alone. `time` is not before the last end that
  /// advance() has found. Returns the number of the message.
  std::size_t send(int from, int to, bool leaves_node, double time, double seconds);

  /// Returns the end of a message; nothing if it is not known yet.
  std::optional<double> end(std::size_t number) const;

  /// Returns the begin of a message whose end is known.
  double begin(std::size_t number) const { return posted_[number].begin; }

  struct Ended {
    int from = 0, to = 0;  // stages
  };
  /// Lets time pass until the next message ends. Returns nothing if none is under way.
  std::optional<Ended> advance();

 private:
  using Direction = std::vector<std::size_t>;  // messages that use it now

  struct Message {
    std::size_t source = 0, target = 0;  // directions
    std::size_t route = 0;
    double submitted = 0, begin = 0;
    double seconds_left = 0;  // at the full rate
    double rate = 0;          // 0: not started
    double updated = 0;       // time of seconds_left
    std::int32_t version = 0;
    bool has_ended = false;
  };
  /// Messages from one stage to another, in order.
  struct Route {
    Ended stages;
    std::deque<std::size_t> waiting;  // the first one runs, or starts next
  };
  /// At this time a message starts or ends. Only its event of the last version counts.
  using Event = std::tuple<double, std::size_t, std::int32_t>;

  void schedule(std::size_t number, double time);
  void start(std::size_t number, double time);
  void finish(std::size_t number, double time);
  void update_rates(const Direction& direction, double time);

  std::vector<Direction> directions_;
  std::deque<Message> posted_;
  std::vector<Route> routes_;
  std::map<std::tuple<int, int, bool>, std::size_t> route_numbers_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace trireme::plan
