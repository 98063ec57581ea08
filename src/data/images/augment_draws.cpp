// SPDX-License-Identifier: Apache-2.0
//
// Draws the parameters of random erasing, mixup and CutMix. Called by reader threads through
// Augmentation.
#include "augment_draws.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "random_draws.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {
namespace {

/// Returns the range of a rectangle inside of an image.
ops::PixelRange range_of(std::int64_t top, std::int64_t left, std::int64_t height,
                         std::int64_t width) {
  const auto side = [](std::int64_t pixels) { return static_cast<std::uint16_t>(pixels); };
  return {side(top), side(top + height), side(left), side(left + width)};
}

/// Returns the logarithm of a number of the distribution Gamma(shape), scale 1.
///
/// Marsaglia and Tsang 2000, "A simple method for generating gamma variables", for a shape of at
/// least 1; for less, Gamma(shape + 1) * u^(1 / shape) (their section 6). A small shape makes
/// numbers below the smallest double, hence the logarithm.
double draw_log_gamma(double shape, std::uint64_t key) {
  constexpr std::uint64_t boost_index = ~std::uint64_t{0};
  const bool boosted = shape < 1;
  const double d = (boosted ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  // 1 - [0, 1) is never 0.
  const auto log_uniform = [key](std::uint64_t index) {
    return std::log(1 - uniform_at(key, index));
  };
  for (std::uint64_t i = 0;; i += 2) {
    const double normal = normal_at(key, i), root = 1 + c * normal;
    if (root <= 0) continue;
    const double v = root * root * root, log_v = std::log(v);
    if (log_uniform(i + 1) < normal * normal / 2 + d - d * v + d * log_v)
      return std::log(d) + log_v + (boosted ? log_uniform(boost_index) / shape : 0);
  }
}

}  // namespace

ops::PixelRange draw_erased(const RandomErasing& erase, std::uint64_t key, ImageExtents image,
                            std::int64_t epoch, std::int64_t sample) {
  constexpr std::uint64_t tries = 10;
  const auto words = [&](std::uint64_t draw) {
    return philox(key, static_cast<std::uint64_t>(sample),
                  static_cast<std::uint64_t>(epoch) * (tries + 1) + draw);
  };
  if (unit(words(0).word[0]) >= erase.probability) return {};
  const double area = static_cast<double>(image.height * image.width);
  const double low = std::log(erase.ratio[0]), high = std::log(erase.ratio[1]);
  for (std::uint64_t i = 1; i <= tries; ++i) {
    const RandomWords random = words(i);
    const double part =
        area * (erase.scale[0] + (erase.scale[1] - erase.scale[0]) * unit(random.word[0]));
    const double ratio = std::exp(low + (high - low) * unit(random.word[1]));
    const std::int64_t height = rounded(std::sqrt(part * ratio)),
                       width = rounded(std::sqrt(part / ratio));
    if (height >= image.height || width >= image.width) continue;
    return range_of(integer_below(image.height - height + 1, random.word[2]),
                    integer_below(image.width - width + 1, random.word[3]), height, width);
  }
  return {};
}

double draw_beta(double alpha, std::uint64_t key) {
  const double a = draw_log_gamma(alpha, mix64(key + 1)), b = draw_log_gamma(alpha, mix64(key + 2));
  return 1 / (1 + std::exp(b - a));
}

ops::PixelRange pasted_around(std::int64_t row, std::int64_t column, double weight,
                              ImageExtents image) {
  const double half = std::sqrt(1 - weight) / 2;
  // Returns the begin and the length of one side.
  const auto side = [half](std::int64_t center, std::int64_t extent) {
    const std::int64_t reach = static_cast<std::int64_t>(half * static_cast<double>(extent)),
                       begin = std::max<std::int64_t>(center - reach, 0);
    return std::pair(begin, std::min(center + reach, extent) - begin);
  };
  const auto [top, height] = side(row, image.height);
  const auto [left, width] = side(column, image.width);
  return range_of(top, left, height, width);
}

double part_of_area(const ops::PixelRange& range, ImageExtents image) {
  return static_cast<double>((range.bottom - range.top) * (range.right - range.left)) /
         static_cast<double>(image.height * image.width);
}

}  // namespace trireme::data
