// Recognizes arrays of images whose channels come before height and width.
#include "channel_order.hpp"

#include <fmt/ranges.h>

namespace trireme::data {

std::string channels_first_problem(const std::vector<std::int64_t>& shape) {
  // Gray or color images of real data are larger than 4 x 4, and images have at most 4 channels
  // (gray, RGB, with opacity) unless they come from special sensors.
  constexpr std::int64_t max_usual_channels = 4;
  const bool found = shape.size() == 4 && (shape[1] == 1 || shape[1] == 3) &&
                     shape[2] > max_usual_channels && shape[3] > max_usual_channels;
  if (!found) return "";
  return fmt::format(
      "extents [{}] mean images of height {} with {} channels, but look like [samples, channels, "
      "height, width], the order of PyTorch; images are [samples, height, width, channels]: "
      "{}",
      fmt::join(shape, ", "), shape[1], shape[3], channels_last_line);
}

}  // namespace trireme::data
