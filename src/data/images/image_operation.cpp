// SPDX-License-Identifier: Apache-2.0
//
// Changes the colors and the geometry of RGB images, as Pillow does.
//
// An operation on single levels is a table of 256 levels for each channel. The others are loops
// over bytes without branches, which the compiler turns into vector instructions. Called by reader
// threads for each training image (color_draws.cpp).
#include "image_operation.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "trireme/base/check.hpp"
#include "trireme/data/images/image.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t rgb = 3;
// Pixels that are worked on at once: their numbers stay in the first cache.
constexpr std::int64_t piece_pixels = 256;
using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::int64_t, 256>;

std::int64_t byte_count(const RgbImage& image) { return image.height * image.width * rgb; }

/// Returns the level between `first` (part 0) and `second` (part 1), or beyond: Pillow's
/// Image.blend.
std::uint8_t blend(int first, int second, float part) {
  const float value = static_cast<float>(first) + part * static_cast<float>(second - first);
  return static_cast<std::uint8_t>(static_cast<int>(std::clamp(value, 0.0f, 255.0f)));
}

/// Returns the brightness of a pixel: Pillow's convert("L").
int gray_of(const std::uint8_t* pixel) {
  return (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + (1 << 15)) >> 16;
}

const std::uint8_t* copy_to(std::vector<std::byte>& scratch, const RgbImage& image) {
  scratch.resize(static_cast<std::size_t>(byte_count(image)));
  std::memcpy(scratch.data(), image.pixels, scratch.size());
  return reinterpret_cast<const std::uint8_t*>(scratch.data());
}

// --- single levels -------------------------------------------------------------------

/// Replaces each level by that of the table of its channel.
void replace_by_tables(const RgbImage& image, const std::array<Table, rgb>& tables) {
  std::uint8_t* pixel = image.pixels;
  for (std::int64_t i = image.height * image.width; i > 0; --i, pixel += rgb)
    for (std::size_t c = 0; c < rgb; ++c) pixel[c] = tables[c][pixel[c]];
}

/// Replaces each level by `level_of(level)`.
template <class LevelOf>
void replace_levels(const RgbImage& image, LevelOf&& level_of) {
  Table table;
  for (int level = 0; level < 256; ++level)
    table[static_cast<std::size_t>(level)] = static_cast<std::uint8_t>(level_of(level));
  for (std::uint8_t *byte = image.pixels, *end = byte + byte_count(image); byte < end; ++byte)
    *byte = table[*byte];
}

/// Replaces the levels of each channel by `table_of` its histogram.
template <class TableOf>
void replace_by_histogram(const RgbImage& image, TableOf&& table_of) {
  std::array<Histogram, rgb> histograms{};
  const std::uint8_t* pixel = image.pixels;
  for (std::int64_t i = image.height * image.width; i > 0; --i, pixel += rgb)
    for (std::size_t c = 0; c < rgb; ++c) ++histograms[c][pixel[c]];
  std::array<Table, rgb> tables;
  std::transform(histograms.begin(), histograms.end(), tables.begin(), table_of);
  replace_by_tables(image, tables);
}

Table unchanged_levels() {
  Table table;
  std::iota(table.begin(), table.end(), std::uint8_t{0});
  return table;
}

/// Returns the last level that the histogram has, or 0.
std::size_t last_level(const Histogram& histogram) {
  std::size_t level = histogram.size() - 1;
  while (level > 0 && histogram[level] == 0) --level;
  return level;
}

Table autocontrast_table(const Histogram& histogram) {
  const std::size_t last = last_level(histogram);
  std::size_t first = 0;
  while (first < last && histogram[first] == 0) ++first;
  Table table = unchanged_levels();
  if (first == last) return table;
  const double scale = 255.0 / static_cast<double>(last - first),
               offset = -static_cast<double>(first) * scale;
  for (std::uint8_t& level : table)
    level = static_cast<std::uint8_t>(std::clamp(level * scale + offset, 0.0, 255.0));
  return table;
}

Table equalize_table(const Histogram& histogram) {
  const std::int64_t all = std::accumulate(histogram.begin(), histogram.end(), std::int64_t{0}),
                     step = (all - histogram[last_level(histogram)]) / 255;
  Table table = unchanged_levels();
  if (step == 0) return table;
  std::int64_t below = step / 2;
  for (std::size_t level = 0; level < table.size(); ++level) {
    table[level] = static_cast<std::uint8_t>(std::min<std::int64_t>(below / step, 255));
    below += histogram[level];
  }
  return table;
}

// --- colors and neighbors ------------------------------------------------------------

void adjust_contrast(const RgbImage& image, float factor) {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < image.height; ++row) {
    const std::uint8_t* const pixels = image.pixels + row * image.width * rgb;
    std::int32_t row_sum = 0;
    for (std::int64_t i = 0; i < image.width; ++i) row_sum += gray_of(pixels + i * rgb);
    sum += row_sum;
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(image.height * image.width);
  const int gray = static_cast<int>(mean + 0.5);
  replace_levels(image, [&](int level) { return blend(gray, level, factor); });
}

void adjust_saturation(const RgbImage& image, float factor) {
  std::array<std::uint8_t, rgb * piece_pixels> gray;
  const std::int64_t pixels = image.height * image.width;
  for (std::int64_t begin = 0; begin < pixels; begin += piece_pixels) {
    const std::int64_t count = std::min(piece_pixels, pixels - begin);
    std::uint8_t* const levels = image.pixels + begin * rgb;
    for (std::int64_t i = 0; i < count; ++i)
      gray[rgb * i] = gray[rgb * i + 1] = gray[rgb * i + 2] =
          static_cast<std::uint8_t>(gray_of(levels + i * rgb));
    for (std::int64_t i = 0; i < count * rgb; ++i) levels[i] = blend(gray[i], levels[i], factor);
  }
}

/// Blends with the image that is smoothed by the filter (1 1 1; 1 5 1; 1 1 1) / 13. The border
/// stays as it is.
void adjust_sharpness(const RgbImage& image, float factor, std::vector<std::byte>& scratch) {
  const std::uint8_t* const from = copy_to(scratch, image);
  const std::int64_t row_bytes = image.width * rgb;
  for (std::int64_t row = 1; row + 1 < image.height; ++row) {
    const std::uint8_t* const middle = from + row * row_bytes;
    const std::uint8_t *const above = middle - row_bytes, *const below = middle + row_bytes;
    std::uint8_t* const out = image.pixels + row * row_bytes;
    for (std::int64_t i = rgb; i < row_bytes - rgb; ++i) {
      const int sum = above[i - rgb] + above[i] + above[i + rgb] + middle[i - rgb] + 5 * middle[i] +
                      middle[i + rgb] + below[i - rgb] + below[i] + below[i + rgb];
      // Rounded; sum / 13 is never halfway between two levels.
      out[i] = blend((2 * sum + 13) / 26, middle[i], factor);
    }
  }
}

/// For each hue h and channel: a color of hue h, saturation s and value v has the level
/// v (1 - s weight) in the channel.
using HueWeights = std::array<std::array<float, 256>, rgb>;

/// Returns the weights of hues that are turned by `shift` 255ths.
HueWeights turned_hues(int shift) {
  HueWeights weights;
  for (int hue = 0; hue < 256; ++hue) {
    const double turned = ((hue + shift) & 255) * 6.0 / 255.0;
    const int sector = static_cast<int>(turned);
    const float part = static_cast<float>(turned - sector);
    // Red is strongest in sectors 5 and 0, green in 1 and 2, blue in 3 and 4.
    const float rising = 1 - part, falling = part;
    const float of_sector[6][rgb] = {{0, rising, 1},  {falling, 0, 1}, {1, 0, rising},
                                     {1, falling, 0}, {rising, 1, 0},  {0, 1, falling}};
    for (std::size_t c = 0; c < rgb; ++c)
      weights[c][static_cast<std::size_t>(hue)] = of_sector[sector % 6][c];
  }
  return weights;
}

/// Converts to hue, saturation and value of 8 bits each, as Pillow's convert("HSV"), turns the hue
/// and converts back.
void adjust_hue(const RgbImage& image, double part_of_turn) {
  const HueWeights weights = turned_hues(static_cast<int>(part_of_turn * 255));
  std::int32_t red[piece_pixels], green[piece_pixels], blue[piece_pixels], hues[piece_pixels];
  float saturations[piece_pixels];
  const std::int64_t pixels = image.height * image.width;
  for (std::int64_t begin = 0; begin < pixels; begin += piece_pixels) {
    const std::int64_t count = std::min(piece_pixels, pixels - begin);
    std::uint8_t* const pixel = image.pixels + begin * rgb;
    for (std::int64_t i = 0; i < count; ++i) {
      red[i] = pixel[i * rgb];
      green[i] = pixel[i * rgb + 1];
      blue[i] = pixel[i * rgb + 2];
    }
    // The types are Pillow's: a hue must be rounded as there, since it is cut off to 8 bits.
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t r = red[i], g = green[i], b = blue[i];
      const std::int32_t most = std::max(r, std::max(g, b)),
                         range = most - std::min(r, std::min(g, b));
      const float divisor = static_cast<float>(std::max(range, 1));
      const float from_red = static_cast<float>(most - r) / divisor,
                  from_green = static_cast<float>(most - g) / divisor,
                  from_blue = static_cast<float>(most - b) / divisor;
      const float in_red = from_blue - from_green;
      const float in_green = static_cast<float>(2.0 + from_red - from_blue);
      const float in_blue = static_cast<float>(4.0 + from_green - from_red);
      const float sixths = r == most ? in_red : (g == most ? in_green : in_blue);
      const double hue_and_one = sixths / 6.0 + 1.0;
      const float hue = static_cast<float>(hue_and_one >= 1 ? hue_and_one - 1 : hue_and_one);
      const float saturation = static_cast<float>(range) / static_cast<float>(std::max(most, 1));
      hues[i] = static_cast<std::int32_t>(hue * 255.0);
      saturations[i] = static_cast<float>(static_cast<std::int32_t>(saturation * 255.0)) / 255.0f;
      red[i] = most;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(red[i]);
      for (std::size_t c = 0; c < rgb; ++c) {
        const float weight = weights[c][static_cast<std::size_t>(hues[i])];
        pixel[i * rgb + static_cast<std::int64_t>(c)] = static_cast<std::uint8_t>(
            static_cast<std::int32_t>(value * (1 - saturations[i] * weight) + 0.5f));
      }
    }
  }
}

// --- geometry ------------------------------------------------------------------------

/// The place that a pixel comes from: column = xx x + xy y + x0, row = yx x + yy y + y0, between
/// the centers of pixels, which are at halves.
struct AffineMap {
  double xx = 1, xy = 0, x0 = 0, yx = 0, yy = 1, y0 = 0;
};

// Places are whole numbers with this many fraction bits, as in Pillow.
constexpr int place_bits = 16;

std::int64_t fixed_place(double place) {
  return static_cast<std::int64_t>(std::floor(place * (1 << place_bits) + 0.5));
}

std::int64_t floor_quotient(std::int64_t number, std::int64_t divisor) {
  return number >= 0 ? number / divisor : -((divisor - 1 - number) / divisor);
}

struct Interval {
  std::int64_t begin = 0, end = 0;
};

/// Returns the part of `within` where place + step x is at least 0 and below `limit`.
Interval inside(Interval within, std::int64_t place, std::int64_t step, std::int64_t limit) {
  if (step == 0) return place >= 0 && place < limit ? within : Interval{};
  if (step < 0) {  // from the other side
    place = limit - 1 - place;
    step = -step;
  }
  const auto first_from = [&](std::int64_t wanted) {
    return floor_quotient(wanted - place + step - 1, step);
  };
  const Interval found{std::max(within.begin, first_from(0)),
                       std::min(within.end, first_from(limit))};
  return found.begin < found.end ? found : Interval{};
}

/// Takes each pixel from its nearest place; pixels from outside are black.
void transform(const RgbImage& image, const AffineMap& map, std::vector<std::byte>& scratch) {
  const std::uint8_t* const from = copy_to(scratch, image);
  const std::int64_t row_bytes = image.width * rgb;
  const std::int64_t xx = fixed_place(map.xx), xy = fixed_place(map.xy), yx = fixed_place(map.yx),
                     yy = fixed_place(map.yy);
  std::int64_t row_x = fixed_place(map.x0 + map.xx * 0.5 + map.xy * 0.5),
               row_y = fixed_place(map.y0 + map.yx * 0.5 + map.yy * 0.5);
  for (std::int64_t row = 0; row < image.height; ++row, row_x += xy, row_y += yy) {
    const Interval part = inside(inside({0, image.width}, row_x, xx, image.width << place_bits),
                                 row_y, yx, image.height << place_bits);
    std::uint8_t* const out = image.pixels + row * row_bytes;
    std::memset(out, 0, static_cast<std::size_t>(part.begin * rgb));
    std::memset(out + part.end * rgb, 0, static_cast<std::size_t>(row_bytes - part.end * rgb));
    std::int64_t x = row_x + part.begin * xx, y = row_y + part.begin * yx;
    for (std::int64_t i = part.begin; i < part.end; ++i, x += xx, y += yx)
      std::memcpy(out + i * rgb, from + (y >> place_bits) * row_bytes + (x >> place_bits) * rgb,
                  rgb);
  }
}

/// Returns the map that rotates around the center of an image.
AffineMap rotation(const RgbImage& image, double degrees) {
  const double angle = -degrees * std::numbers::pi / 180, cosine = std::cos(angle),
               sine = std::sin(angle);
  const double x = static_cast<double>(image.width) / 2, y = static_cast<double>(image.height) / 2;
  return {cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y};
}

}  // namespace

void apply(const ImageOperation& operation, const RgbImage& image,
           std::vector<std::byte>& scratch) {
  TRIREME_EXPECT(image.height > 0 && image.width > 0);
  const double value = operation.value;
  const float factor = static_cast<float>(value);
  using enum ImageOperation::Kind;
  switch (operation.kind) {
    case identity: return;
    case shear_x: return transform(image, {.xy = value}, scratch);
    case shear_y: return transform(image, {.yx = value}, scratch);
    case translate_x: return transform(image, {.x0 = -std::trunc(value)}, scratch);
    case translate_y: return transform(image, {.y0 = -std::trunc(value)}, scratch);
    case rotate: return transform(image, rotation(image, value), scratch);
    case brightness:
      return replace_levels(image, [&](int level) { return blend(0, level, factor); });
    case saturation: return adjust_saturation(image, factor);
    case contrast: return adjust_contrast(image, factor);
    case sharpness: return adjust_sharpness(image, factor, scratch);
    case posterize: {
      const int mask = 0xFF << (8 - static_cast<int>(value));
      return replace_levels(image, [&](int level) { return level & mask; });
    }
    case solarize:
      return replace_levels(image, [&](int level) { return level < value ? level : 255 - level; });
    case autocontrast: return replace_by_histogram(image, autocontrast_table);
    case equalize: return replace_by_histogram(image, equalize_table);
    case hue: return adjust_hue(image, value);
  }
}

Image convert_to_gray(const Image& image) {
  TRIREME_EXPECT(image.channels == rgb);
  Image gray{image.height, image.width, 1, {}};
  const auto* pixel = reinterpret_cast<const std::uint8_t*>(image.pixels.data());
  gray.pixels.reserve(image.pixels.size() / rgb);
  for (std::size_t i = 0; i < image.pixels.size(); i += rgb)
    gray.pixels.push_back(static_cast<std::byte>(gray_of(pixel + i)));
  return gray;
}

void shift_and_mirror(const RgbImage& image, std::int64_t row, std::int64_t column, bool mirror,
                      std::vector<std::byte>& scratch) {
  AffineMap map{.x0 = static_cast<double>(column), .y0 = static_cast<double>(row)};
  if (mirror) {
    map.xx = -1;
    map.x0 += static_cast<double>(image.width);
  }
  transform(image, map, scratch);
}

}  // namespace trireme::data
