// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace trireme::plan {

/// A position between two neighboring points: values[low] * (1 - part) + values[low + 1] * part.
struct Position {
  std::size_t low = 0;
  double part = 0;  ///< 0 at the ends, so that low + 1 is not read there
};

/// Returns the position of x > 0 between ascending points > 0 on a logarithmic scale; the first or
/// last point if x is outside.
inline Position position_of(double x, const std::vector<double>& points) {
  if (x <= points.front()) return {};
  if (x >= points.back()) return {points.size() - 1, 0};
  const auto above = std::upper_bound(points.begin(), points.end(), x);
  const auto low = static_cast<std::size_t>(above - points.begin()) - 1;
  return {low, std::log(x / points[low]) / std::log(points[low + 1] / points[low])};
}

/// Returns the value at x of a curve through (points[i], values[i]), linear in logarithms.
inline double interpolate(double x, const std::vector<double>& points,
                          const std::vector<double>& values) {
  const auto [low, part] = position_of(x, points);
  return part == 0 ? values[low] : values[low] * std::pow(values[low + 1] / values[low], part);
}

}  // namespace trireme::plan
