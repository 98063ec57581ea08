// SPDX-License-Identifier: Apache-2.0
#include "trireme/parallel/position_grid.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/expect.hpp"

namespace trireme::parallel {
namespace {

// A file must not decide how much memory is taken.
constexpr std::int64_t max_side = 1024;

/// The weights of the old positions [first, first + weights.size()) along an axis, of sum 1.
struct Window {
  std::int64_t first = 0;
  std::vector<double> weights;
};

/// Keys's kernel with a = -1/2.
double cubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/// Returns a window for each new position. Those at the border are cut off there.
std::vector<Window> windows(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to),
               stretch = std::max(scale, 1.0), radius = 2 * stretch;
  std::vector<Window> all;
  for (std::int64_t i = 0; i < to; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto rounded = [](double x) { return static_cast<std::int64_t>(x + 0.5); };
    Window window{std::max<std::int64_t>(rounded(center - radius), 0), {}};
    const std::int64_t end = std::min(rounded(center + radius), from);
    double sum = 0;
    for (std::int64_t j = window.first; j < end; ++j)
      sum += window.weights.emplace_back(cubic((static_cast<double>(j) + 0.5 - center) / stretch));
    for (double& weight : window.weights) weight /= sum;
    all.push_back(std::move(window));
  }
  return all;
}

/// Interpolates along the middle axis of [outer, from, inner].
std::vector<double> along_axis(const std::vector<double>& values, std::int64_t outer,
                               std::int64_t from, std::int64_t to, std::int64_t inner) {
  std::vector<double> result(static_cast<std::size_t>(outer * to * inner), 0);
  const std::vector<Window> all = windows(from, to);
  double* sum = result.data();
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const Window& window : all) {
      const double* row = values.data() + (o * from + window.first) * inner;
      for (const double weight : window.weights) {
        for (std::int64_t i = 0; i < inner; ++i) sum[i] += weight * row[i];
        row += inner;
      }
      sum += inner;
    }
  }
  return result;
}

}  // namespace

std::optional<PositionGrid> square_grid(std::int64_t positions, std::int64_t leading) {
  const std::int64_t cells = positions - leading;
  if (cells < 1 || cells > max_side * max_side) return std::nullopt;
  const std::int64_t side = std::llround(std::sqrt(static_cast<double>(cells)));
  if (side * side != cells) return std::nullopt;
  return PositionGrid{leading, side, side};
}

std::vector<float> interpolate(std::span<const float> vectors, const PositionGrid& from,
                               const PositionGrid& to, std::int64_t extent) {
  TRIREME_EXPECT(from.leading == to.leading && std::ssize(vectors) == from.positions() * extent);
  const auto in_front = vectors.first(static_cast<std::size_t>(from.leading * extent));
  const auto grid = vectors.subspan(in_front.size());
  const std::vector<double> wide =
      along_axis({grid.begin(), grid.end()}, from.height, from.width, to.width, extent);
  const std::vector<double> whole = along_axis(wide, 1, from.height, to.height, to.width * extent);
  std::vector<float> result(in_front.begin(), in_front.end());
  for (const double value : whole) result.push_back(static_cast<float>(value));
  return result;
}

}  // namespace trireme::parallel
