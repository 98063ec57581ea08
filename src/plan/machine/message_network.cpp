// SPDX-License-Identifier: Apache-2.0
#include "message_network.hpp"

#include <algorithm>

namespace trireme::plan {

std::size_t MessageNetwork::send(int from, int to, bool leaves_node, double time, double seconds) {
  // Directions of a stage: out of it and into it, in the node and between nodes.
  const auto direction = [&](int stage, bool into) {
    return 4 * static_cast<std::size_t>(stage) + (leaves_node ? 2 : 0) + (into ? 1 : 0);
  };
  const auto [route, is_new] = route_numbers_.try_emplace({from, to, leaves_node}, routes_.size());
  if (is_new) routes_.push_back({{from, to}, {}});
  const std::size_t number = posted_.size();
  posted_.push_back({.source = direction(from, false),
                     .target = direction(to, true),
                     .route = route->second,
                     .submitted = time,
                     .seconds_left = seconds});
  std::deque<std::size_t>& waiting = routes_[route->second].waiting;
  waiting.push_back(number);
  if (waiting.size() == 1) schedule(number, time);
  return number;
}

std::optional<double> MessageNetwork::end(std::size_t number) const {
  const Message& message = posted_[number];
  if (!message.has_ended) return std::nullopt;
  return message.updated;
}

std::optional<MessageNetwork::Ended> MessageNetwork::advance() {
  while (!events_.empty()) {
    const auto [time, number, version] = events_.top();
    events_.pop();
    if (posted_[number].version != version) continue;
    if (posted_[number].rate == 0) {
      start(number, time);
      continue;
    }
    finish(number, time);
    return routes_[posted_[number].route].stages;
  }
  return std::nullopt;
}

void MessageNetwork::schedule(std::size_t number, double time) {
  events_.emplace(time, number, ++posted_[number].version);
}

void MessageNetwork::start(std::size_t number, double time) {
  Message& message = posted_[number];
  message.begin = message.updated = time;
  message.rate = 1;  // until update_rates()
  directions_[message.source].push_back(number);
  directions_[message.target].push_back(number);
  update_rates(directions_[message.source], time);
  update_rates(directions_[message.target], time);
}

void MessageNetwork::finish(std::size_t number, double time) {
  Message& message = posted_[number];
  message.updated = time;
  message.has_ended = true;
  ++message.version;
  std::erase(directions_[message.source], number);
  std::erase(directions_[message.target], number);
  update_rates(directions_[message.source], time);
  update_rates(directions_[message.target], time);
  std::deque<std::size_t>& waiting = routes_[message.route].waiting;
  waiting.pop_front();
  if (!waiting.empty())
    schedule(waiting.front(), std::max(time, posted_[waiting.front()].submitted));
}

void MessageNetwork::update_rates(const Direction& direction, double time) {
  for (const std::size_t number : direction) {
    Message& message = posted_[number];
    const std::size_t sharing =
        std::max(directions_[message.source].size(), directions_[message.target].size());
    message.seconds_left =
        std::max(0.0, message.seconds_left - (time - message.updated) * message.rate);
    message.updated = time;
    message.rate = 1 / static_cast<double>(sharing);
    schedule(number, time + message.seconds_left / message.rate);
  }
}

}  // namespace trireme::plan
