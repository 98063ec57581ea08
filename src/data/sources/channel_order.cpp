// SPDX-License-Identifier: Apache-2.0
//
// Recognizes arrays of images whose channels come before height and width.
#include "channel_order.hpp"

#include <algorithm>

#include <fmt/ranges.h>

namespace trireme::data {

bool looks_channels_first(const std::vector<std::int64_t>& shape) {
  // Images have at most 4 channels (gray, RGB, with opacity), and those of special sensors, as of
  // satellites, about 13. Spectrograms may be thin, but have few channels.
  constexpr std::int64_t max_usual_channels = 4, max_channels = 16;
  if (shape.size() != 4) return false;
  const std::int64_t first = shape[1], second = shape[2], third = shape[3],
                     smaller = std::min(second, third);
  return first <= max_channels && smaller > std::max(first, max_usual_channels) &&
         (second == third || smaller >= 2 * first);
}

std::string channels_first_problem(const std::vector<std::int64_t>& shape) {
  if (!looks_channels_first(shape)) return "";
  return fmt::format(
      "extents [{}] mean images of height {} with {} channels, but look like [samples, channels, "
      "height, width], the order of PyTorch; images are [samples, height, width, channels]: "
      "{}",
      fmt::join(shape, ", "), shape[1], shape[3], channels_last_line);
}

}  // namespace trireme::data
