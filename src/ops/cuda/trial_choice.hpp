// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace trireme::ops::cuda {

/// Returns the fastest of `count` variants. time_group(i) times a group of runs of variant i: the
/// milliseconds of one run, or none if it cannot be run. time_is_up() returns whether the time for
/// the choice is used up; the best so far is then taken. The first two are always timed: one alone
/// would be no choice.
///
/// A device's clock changes from moment to moment, so a variant counts with the best of three
/// groups, and the three best variants are timed once more, one after the other. Returns 0 if no
/// variant could be run.
template <class TimeGroup, class TimeIsUp>
std::size_t choose_fastest(std::size_t count, const TimeGroup& time_group,
                           const TimeIsUp& time_is_up) {
  constexpr int groups = 3;
  constexpr std::size_t finalists = 3;
  std::vector<double> best(count, std::numeric_limits<double>::infinity());
  const auto time = [&](std::size_t i) {
    for (int group = 0; group < groups; ++group) {
      const std::optional<double> milliseconds = time_group(i);
      if (!milliseconds) return;
      best[i] = std::min(best[i], *milliseconds);
    }
  };
  for (std::size_t i = 0; i < count && (i < 2 || !time_is_up()); ++i) time(i);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return best[a] < best[b]; });
  order.resize(std::min(count, finalists));
  for (const std::size_t i : order) {
    if (time_is_up() || best[i] == std::numeric_limits<double>::infinity()) break;
    time(i);
  }
  return static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
}

}  // namespace trireme::ops::cuda
