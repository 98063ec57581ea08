// Scales images as Pillow does: a triangle filter with fixed-point weights.
//
// A pass along one axis: each output pixel is the weighted sum of the input pixels below a triangle
// around its center. The triangle is as wide as two output pixels, but at least as two input
// pixels. The horizontal pass comes first, over the rows that the vertical pass reads.
#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/data/image.hpp"

namespace trireme::data {
namespace {

// Weights are integers of this many fraction bits. 8 bits of a pixel and 2 bits of headroom remain.
constexpr int weight_bits = 32 - 8 - 2;

/// The input pixels of one output pixel.
struct Window {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights;
};

/// Returns the windows of output pixels [begin, begin + count), if `from` pixels are scaled to
/// `to`.
std::vector<Window> windows_of(std::int64_t from, std::int64_t to, std::int64_t begin,
                               std::int64_t count) {
  const double scale = static_cast<double>(from) / static_cast<double>(to),
               reach = std::max(scale, 1.0);
  std::vector<Window> windows(static_cast<std::size_t>(count));
  std::vector<double> weights;
  for (std::int64_t i = 0; i < count; ++i) {
    const double center = (static_cast<double>(begin + i) + 0.5) * scale;
    const std::int64_t first =
        std::max<std::int64_t>(static_cast<std::int64_t>(center - reach + 0.5), 0);
    const std::int64_t end = std::min(static_cast<std::int64_t>(center + reach + 0.5), from);
    weights.clear();
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x) {
      const double distance = std::abs((static_cast<double>(x) - center + 0.5) / reach);
      weights.push_back(std::max(0.0, 1.0 - distance));
      sum += weights.back();
    }
    Window& window = windows[static_cast<std::size_t>(i)];
    window.first = first;
    for (const double weight : weights)
      window.weights.push_back(
          static_cast<std::int32_t>(weight / sum * (std::int32_t{1} << weight_bits) + 0.5));
  }
  return windows;
}

std::byte to_pixel(std::int32_t sum) {
  return static_cast<std::byte>(std::clamp(sum >> weight_bits, 0, 255));
}

constexpr std::int32_t half = std::int32_t{1} << (weight_bits - 1);

/// Scales rows [first_row, end_row) horizontally.
Image scale_rows(const Image& image, std::int64_t first_row, std::int64_t end_row,
                 const std::vector<Window>& windows) {
  Image scaled{end_row - first_row, std::ssize(windows), image.channels, {}};
  scaled.pixels.resize(static_cast<std::size_t>(scaled.height * scaled.row_bytes()));
  std::byte* out = scaled.pixels.data();
  for (std::int64_t row = first_row; row < end_row; ++row) {
    const std::byte* const line = image.pixels.data() + row * image.row_bytes();
    for (const Window& window : windows) {
      for (std::int64_t c = 0; c < image.channels; ++c) {
        const std::byte* in = line + window.first * image.channels + c;
        std::int32_t sum = half;
        for (const std::int32_t weight : window.weights) {
          sum += weight * std::to_integer<std::int32_t>(*in);
          in += image.channels;
        }
        *out++ = to_pixel(sum);
      }
    }
  }
  return scaled;
}

/// Scales vertically; row 0 of the image is row `first_row` of the windows.
Image scale_columns(const Image& image, std::int64_t first_row,
                    const std::vector<Window>& windows) {
  Image scaled{std::ssize(windows), image.width, image.channels, {}};
  scaled.pixels.resize(static_cast<std::size_t>(scaled.height * scaled.row_bytes()));
  const auto values = static_cast<std::size_t>(image.row_bytes());
  std::vector<std::int32_t> sums(values);
  std::byte* out = scaled.pixels.data();
  for (const Window& window : windows) {
    std::fill(sums.begin(), sums.end(), half);
    const std::byte* in = image.pixels.data() + (window.first - first_row) * image.row_bytes();
    for (const std::int32_t weight : window.weights) {
      for (std::size_t i = 0; i < values; ++i)
        sums[i] += weight * std::to_integer<std::int32_t>(in[i]);
      in += values;
    }
    out = std::transform(sums.begin(), sums.end(), out, to_pixel);
  }
  return scaled;
}

}  // namespace

Image resize_to_cover(const Image& image, std::int64_t height, std::int64_t width) {
  TRIREME_EXPECT(height > 0 && width > 0 && image.height > 0 && image.width > 0);
  // 1. The scaled size: one side is the wanted one, the other one at least.
  std::int64_t scaled_height = height, scaled_width = image.width * height / image.height;
  if (scaled_width < width) {
    scaled_width = width;
    scaled_height = std::max(image.height * width / image.width, height);
  }
  const auto cut = [](std::int64_t scaled, std::int64_t wanted) {
    return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(scaled - wanted) / 2));
  };
  const std::int64_t top = cut(scaled_height, height), left = cut(scaled_width, width);
  // 2. Only the pixels of the cut are computed.
  const std::vector<Window> columns = windows_of(image.width, scaled_width, left, width),
                            rows = windows_of(image.height, scaled_height, top, height);
  const std::int64_t first_row = rows.front().first,
                     end_row = rows.back().first + std::ssize(rows.back().weights);
  return scale_columns(scale_rows(image, first_row, end_row, columns), first_row, rows);
}

}  // namespace trireme::data
