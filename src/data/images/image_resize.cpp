// SPDX-License-Identifier: Apache-2.0
//
// Scales images as Pillow does: a triangle filter with fixed-point weights.
//
// A pass along one axis: each output pixel is the weighted sum of the input pixels below a triangle
// around its center. The triangle is as wide as two output pixels, but at least as two input
// pixels. The horizontal pass comes first, over the rows that the vertical pass reads. Called by
// `trireme shard --resize`, and by reader threads for crops (image_form.cpp).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "trireme/base/check.hpp"
#include "trireme/data/images/image.hpp"

namespace trireme::data {
namespace {

// Weights are integers of this many fraction bits. 8 bits of a pixel and 2 bits of headroom remain.
constexpr int weight_bits = 32 - 8 - 2;
constexpr std::int32_t half = std::int32_t{1} << (weight_bits - 1);

/// The input pixels of each output pixel along one axis.
struct Windows {
  struct Window {
    std::int64_t first = 0, count = 0;  ///< input pixels
    std::int64_t weights = 0;           ///< index of its first weight
  };
  std::vector<Window> pixels;
  std::vector<std::int32_t> weights;

  std::int64_t begin() const { return pixels.front().first; }
  std::int64_t end() const { return pixels.back().first + pixels.back().count; }
};

/// A part of an axis that is scaled.
struct Interval {
  Interval(double begin, double the_length)
      : first(static_cast<std::int64_t>(begin)),
        offset(begin - static_cast<double>(first)),
        length(the_length),
        count(static_cast<std::int64_t>(std::ceil(offset + length))) {}
  std::int64_t first;     ///< the first pixel of which it has a part
  double offset, length;  ///< begin, from the left side of the first pixel; in pixels
  std::int64_t count;     ///< pixels of which it has a part
};

/// Returns the windows of output pixels [begin, begin + count), if the interval is scaled to `to`
/// pixels. Windows count from the first pixel of the interval.
Windows windows_of(const Interval& from, std::int64_t to, std::int64_t begin, std::int64_t count) {
  const double scale = from.length / static_cast<double>(to), reach = std::max(scale, 1.0);
  Windows windows;
  windows.pixels.reserve(static_cast<std::size_t>(count));
  windows.weights.reserve(static_cast<std::size_t>(count) *
                          (static_cast<std::size_t>(2 * reach) + 3));
  std::vector<double> weights;
  for (std::int64_t i = 0; i < count; ++i) {
    const double center = from.offset + (static_cast<double>(begin + i) + 0.5) * scale;
    const std::int64_t first =
        std::max<std::int64_t>(static_cast<std::int64_t>(center - reach + 0.5), 0);
    const std::int64_t end = std::min(static_cast<std::int64_t>(center + reach + 0.5), from.count);
    weights.clear();
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x) {
      const double distance = std::abs((static_cast<double>(x) - center + 0.5) / reach);
      weights.push_back(std::max(0.0, 1.0 - distance));
      sum += weights.back();
    }
    windows.pixels.push_back({first, end - first, std::ssize(windows.weights)});
    for (const double weight : weights)
      windows.weights.push_back(
          static_cast<std::int32_t>(weight / sum * (std::int32_t{1} << weight_bits) + 0.5));
  }
  return windows;
}

std::byte to_pixel(std::int32_t sum) {
  return static_cast<std::byte>(std::clamp(sum >> weight_bits, 0, 255));
}

// 4 and 16 integers with which GCC and Clang compute at once.
using Int4 = std::int32_t __attribute__((vector_size(16)));
using Byte16 = std::uint8_t __attribute__((vector_size(16)));

/// Returns the 4 bytes at `from` as 32-bit integers.
Int4 widen(const std::byte* from) {
  std::int32_t bytes = 0;
  std::memcpy(&bytes, from, sizeof bytes);
  const auto packed = reinterpret_cast<Byte16>(Int4{bytes, 0, 0, 0});
  // Byte 4 is 0: the upper bytes of each integer.
  return reinterpret_cast<Int4>(
      __builtin_shufflevector(packed, packed, 0, 4, 4, 4, 1, 4, 4, 4, 2, 4, 4, 4, 3, 4, 4, 4));
}

/// Scales `Rows` rows of 3 channels: all channels at once, and several rows to hide the latency of
/// multiplications. Reads one byte behind the last pixel of each row.
template <int Rows>
void scale_rgb_rows(const std::byte* first_row, std::int64_t row_bytes, const Windows& windows,
                    std::byte* out) {
  const std::int64_t out_bytes = std::ssize(windows.pixels) * 3;
  for (const Windows::Window& window : windows.pixels) {
    const std::byte* in = first_row + window.first * 3;
    const std::int32_t* weights = windows.weights.data() + window.weights;
    Int4 sums[Rows];
    std::fill(sums, sums + Rows, Int4{half, half, half, half});
    for (std::int64_t i = 0; i < window.count; ++i, in += 3) {
      for (int row = 0; row < Rows; ++row) {
        sums[row] += widen(in + row * row_bytes) * weights[i];
      }
    }
    for (int row = 0; row < Rows; ++row) {
      // Weights are not negative and add up to 1, so only rounding can leave 0 .. 255.
      const Int4 values = sums[row] >> weight_bits, most{255, 255, 255, 255};
      const auto bytes = reinterpret_cast<Byte16>(values > most ? most : values);
      const Byte16 pixel =
          __builtin_shufflevector(bytes, bytes, 0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
      std::memcpy(out + row * out_bytes, &pixel, 3);
    }
    out += 3;
  }
}

/// Scales one row of any number of channels.
void scale_row(const std::byte* row, const Windows& windows, std::int64_t channels,
               std::byte* out) {
  for (const Windows::Window& window : windows.pixels) {
    const std::int32_t* weights = windows.weights.data() + window.weights;
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::byte* in = row + window.first * channels + c;
      std::int32_t sum = half;
      for (std::int64_t i = 0; i < window.count; ++i, in += channels)
        sum += weights[i] * std::to_integer<std::int32_t>(*in);
      *out++ = to_pixel(sum);
    }
  }
}

}  // namespace

void scale_image(const ImageView& image, const FractionalBox& from, ImageExtents scaled,
                 const PixelBox& cut, std::byte* out) {
  TRIREME_EXPECT(from.height > 0 && from.width > 0 && from.top >= 0 && from.left >= 0);
  const Interval vertical(from.top, from.height), horizontal(from.left, from.width);
  TRIREME_EXPECT(vertical.first + vertical.count <= image.height &&
                 horizontal.first + horizontal.count <= image.width);
  TRIREME_EXPECT(cut.height > 0 && cut.width > 0 && cut.top >= 0 && cut.left >= 0 &&
                 cut.top + cut.height <= scaled.height && cut.left + cut.width <= scaled.width);
  const Windows columns = windows_of(horizontal, scaled.width, cut.left, cut.width),
                rows = windows_of(vertical, scaled.height, cut.top, cut.height);
  // 1. The rows that the second pass reads, scaled horizontally.
  const std::int64_t values = cut.width * image.channels;
  std::vector<std::byte> narrow(static_cast<std::size_t>((rows.end() - rows.begin()) * values));
  for (std::int64_t row = rows.begin(); row < rows.end();) {
    constexpr int together = 4;
    const std::byte* const in = image.pixels + (vertical.first + row) * image.row_bytes() +
                                horizontal.first * image.channels;
    std::byte* const scaled_row = narrow.data() + (row - rows.begin()) * values;
    // The byte behind the last row of the image is not its own.
    const bool many = image.channels == 3 && row + together <= rows.end() &&
                      vertical.first + row + together < image.height;
    if (many)
      scale_rgb_rows<together>(in, image.row_bytes(), columns, scaled_row);
    else
      scale_row(in, columns, image.channels, scaled_row);
    row += many ? together : 1;
  }
  // 2. Vertically: whole rows are added.
  std::vector<std::int32_t> sums(static_cast<std::size_t>(values));
  for (const Windows::Window& window : rows.pixels) {
    std::fill(sums.begin(), sums.end(), half);
    const std::byte* in = narrow.data() + (window.first - rows.begin()) * values;
    for (std::int64_t i = 0; i < window.count; ++i, in += values) {
      const std::int32_t weight = rows.weights[static_cast<std::size_t>(window.weights + i)];
      for (std::size_t k = 0; k < sums.size(); ++k)
        sums[k] += weight * std::to_integer<std::int32_t>(in[k]);
    }
    out = std::transform(sums.begin(), sums.end(), out, to_pixel);
  }
}

PixelBox center_box(ImageExtents image, std::int64_t height, std::int64_t width) {
  const auto begin = [](std::int64_t side, std::int64_t wanted) {
    return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(side - wanted) / 2));
  };
  return {begin(image.height, height), begin(image.width, width), height, width};
}

ImageExtents scaled_to_shorter(ImageExtents image, std::int64_t shorter) {
  return image.width <= image.height ? ImageExtents{image.height * shorter / image.width, shorter}
                                     : ImageExtents{shorter, image.width * shorter / image.height};
}

Image resize_image(const ImageView& image, ImageExtents scaled) {
  Image out{scaled.height, scaled.width, image.channels, {}};
  out.pixels.resize(static_cast<std::size_t>(out.height * out.row_bytes()));
  scale_image(image, PixelBox{0, 0, image.height, image.width}, scaled,
              {0, 0, out.height, out.width}, out.pixels.data());
  return out;
}

Image resize_to_cover(const ImageView& image, std::int64_t height, std::int64_t width) {
  TRIREME_EXPECT(height > 0 && width > 0 && image.height > 0 && image.width > 0);
  // One side of the scaled image is the wanted one, the other one at least.
  ImageExtents scaled{height, image.width * height / image.height};
  if (scaled.width < width) scaled = {std::max(image.height * width / image.width, height), width};
  Image out{height, width, image.channels, {}};
  out.pixels.resize(static_cast<std::size_t>(height * out.row_bytes()));
  scale_image(image, PixelBox{0, 0, image.height, image.width}, scaled,
              center_box(scaled, height, width), out.pixels.data());
  return out;
}

}  // namespace trireme::data
