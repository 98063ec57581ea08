// SPDX-License-Identifier: Apache-2.0
//
// Decoding of JPEG files at a lower resolution (data.decode = "fast"): which one is taken, that
// parts have the pixels of whole images, and how far the results are from exact decoding.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "test_images.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

/// Returns the pixels of an image of `eighths` / 8 of the resolution of which `box` has a part.
PixelBox touched(const PixelBox& box, std::int64_t eighths) {
  const auto begin = [&](std::int64_t at) { return at * eighths / 8; };
  const auto end = [&](std::int64_t at) { return (at * eighths + 7) / 8; };
  return {begin(box.top), begin(box.left), end(box.top + box.height) - begin(box.top),
          end(box.left + box.width) - begin(box.left)};
}

/// A part at a lower resolution must have the pixels of the whole image at that resolution.
void expect_equal_scaled_parts(const std::vector<std::byte>& file, std::int64_t eighths) {
  const ImageExtents extents = read_image_extents(file);
  const auto smallest_of = [&](std::int64_t height, std::int64_t width) {
    return ImageExtents{height * eighths / 8, width * eighths / 8};
  };
  const auto decode = [&](const PixelBox& box) {
    return decode_part(file, [&](ImageExtents) { return box; }, smallest_of(box.height, box.width));
  };
  const ImagePart whole = decode({0, 0, extents.height, extents.width});
  ASSERT_EQ(whole.eighths, eighths);
  ASSERT_EQ((ImageExtents{whole.image.height, whole.image.width}),
            (ImageExtents{(extents.height * eighths + 7) / 8, (extents.width * eighths + 7) / 8}));
  for (std::int64_t i = 0; i < 60; ++i) {
    const PixelBox box = draw_resized_crop(random_crops(8), extents, 0, i);
    if (std::min(box.height, box.width) * eighths < 8) continue;
    const ImagePart part = decode(box);
    ASSERT_EQ(part.eighths, eighths);
    const PixelBox needed = touched(box, eighths);
    const FractionalBox at = part.locate(box);
    EXPECT_EQ(std::floor(at.top) + static_cast<double>(part.top), needed.top);
    EXPECT_EQ(at.width * 8, static_cast<double>(box.width * eighths));
    const PixelBox inside{needed.top - part.top, needed.left - part.left, needed.height,
                          needed.width};
    ASSERT_TRUE(inside.top >= 0 && inside.left >= 0 &&
                inside.top + inside.height <= part.image.height &&
                inside.left + inside.width <= part.image.width);
    ASSERT_EQ(cut(part.image, inside), cut(whole.image, needed))
        << eighths << " eighths: " << box.top << " " << box.left << " " << box.height << " "
        << box.width;
  }
}

TEST(ImageEncoding, APartAtALowerResolutionHasThePixelsOfTheWholeImage) {
  for (const int eighths : {1, 2, 4}) {
    expect_equal_scaled_parts(encode_jpeg(pattern(123, 157, 1, 1), 90), eighths);
    for (const auto& [horizontal, vertical] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}, {4, 1}})
      for (const bool progressive : {false, true})
        expect_equal_scaled_parts(
            jpeg_of(pattern(123, 157, 3, 2), horizontal, vertical, progressive), eighths);
  }
}

TEST(ImageEncoding, TheResolutionIsTheLowestThatKeepsTheExtents) {
  const ImageExtents size{224, 224};
  for (const auto& [height, width, eighths] : {std::tuple(224, 224, 8),
                                               {447, 448, 8},
                                               {448, 447, 8},
                                               {448, 448, 4},
                                               {895, 2000, 4},
                                               {896, 895, 4},
                                               {896, 896, 2},
                                               {1791, 1792, 2},
                                               {1792, 1792, 1},
                                               {9000, 9000, 1},
                                               {1, 1, 8},
                                               {100, 5000, 8}})
    EXPECT_EQ(resolution_eighths({7, 5, height, width}, size), eighths) << height << " " << width;
  // A PNG has only its own resolution.
  const ImagePart png = decode_part(
      encode_png(pattern(40, 50, 3, 1)), [](ImageExtents) { return PixelBox{3, 4, 32, 32}; },
      ImageExtents{4, 4});
  EXPECT_EQ(png.eighths, 8);
  EXPECT_EQ(png.image.pixels, pattern(40, 50, 3, 1).pixels);
  EXPECT_EQ(png.locate({3, 4, 32, 32}).left, 4);
}

/// Returns an image with the statistics of photographs: waves whose amplitude falls with their
/// frequency, and patches with sharp edges that cover each other.
Image photograph(std::int64_t height, std::int64_t width, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<double> values(static_cast<std::size_t>(height * width * 3), 128);
  const auto value = [&](std::int64_t row, std::int64_t column, int c) -> double& {
    return values[static_cast<std::size_t>((row * width + column) * 3 + c)];
  };
  for (int patch = 0; patch < 24; ++patch) {
    const std::int64_t top = static_cast<std::int64_t>(unit() * static_cast<double>(height)),
                       left = static_cast<std::int64_t>(unit() * static_cast<double>(width)),
                       bottom = std::min(height, top + 5 + static_cast<std::int64_t>(60 * unit())),
                       right = std::min(width, left + 5 + static_cast<std::int64_t>(60 * unit()));
    const double color[3] = {60 + 140 * unit(), 60 + 140 * unit(), 60 + 140 * unit()};
    for (std::int64_t row = top; row < bottom; ++row)
      for (std::int64_t column = left; column < right; ++column)
        for (int c = 0; c < 3; ++c) value(row, column, c) = color[c];
  }
  for (int wave = 0; wave < 80; ++wave) {
    const double frequency = 0.02 * std::pow(100, unit()), angle = 6.2832 * unit(),
                 amplitude = 0.25 / frequency, phase = 6.2832 * unit(), gray = unit();
    for (std::int64_t row = 0; row < height; ++row)
      for (std::int64_t column = 0; column < width; ++column)
        for (int c = 0; c < 3; ++c)
          value(row, column, c) +=
              std::min(amplitude, 6.0) *
              std::sin(phase + c * gray +
                       frequency * (static_cast<double>(row) * std::cos(angle) +
                                    static_cast<double>(column) * std::sin(angle)));
  }
  Image image{height, width, 3, {}};
  for (const double v : values)
    image.pixels.push_back(static_cast<std::byte>(std::clamp(v + 0.5, 0.0, 255.0)));
  return image;
}

/// How far the form of images decoded fast is from that of images decoded exactly.
struct Difference {
  double levels = 0, squares = 0, values = 0;  ///< sums over all values
  double mean() const { return levels / values; }
  double psnr() const { return 10 * std::log10(255 * 255 * values / squares); }
};

/// Returns the differences of 50 random crops of each file, scaled to `size`, by resolution.
std::map<int, Difference> differences_of(const std::vector<std::vector<std::byte>>& files,
                                         std::int64_t size) {
  std::map<int, Difference> differences;
  for (const std::vector<std::byte>& file : files) {
    for (std::int64_t sample = 0; sample < 50; ++sample) {
      std::vector<std::byte> formed[2];
      int eighths = 0;
      for (const Decoding decoding : {Decoding::exact, Decoding::fast}) {
        ImageForm form = random_crops(size);
        form.decoding = decoding;
        PixelBox box;
        const ImagePart part = decode_part(
            file, [&](ImageExtents extents) { return box = box_of(form, extents, 0, sample); },
            smallest_extents(form));
        eighths = part.eighths;
        std::vector<std::byte>& pixels = formed[static_cast<int>(decoding)];
        pixels.resize(static_cast<std::size_t>(size * size * 3));
        form_image(form, part.image, box, part.locate(box), pixels.data());
      }
      Difference& difference = differences[eighths];
      for (std::size_t i = 0; i < formed[0].size(); ++i) {
        const int levels = std::to_integer<int>(formed[0][i]) - std::to_integer<int>(formed[1][i]);
        difference.levels += std::abs(levels);
        difference.squares += levels * levels;
      }
      difference.values += static_cast<double>(formed[0].size());
    }
  }
  return differences;
}

TEST(ImageForms, FastDecodingIsCloseToExactDecoding) {
  std::vector<std::vector<std::byte>> files;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    files.push_back(encode_jpeg(photograph(272, 320, seed), 90));
  // Both resample the same pixels by other filters, so edges and noise differ. These images gave
  // means of 0.47, 0.60 and 1.14 levels, and 48.8, 47.8 and 42.8 dB. A tenth more (0.5 dB) allows
  // for other versions of libjpeg-turbo. Rectangles that begin at whole pixels of the lower
  // resolution give 1.19, 2.82 and 3.70 levels.
  std::map<int, Difference> differences = differences_of(files, 32);
  ASSERT_EQ(differences.size(), 3u) << "all resolutions are used";
  for (const auto& [eighths, max_mean, min_psnr] :
       {std::tuple(4, 0.52, 48.3), {2, 0.66, 47.3}, {1, 1.26, 42.3}}) {
    EXPECT_LT(differences[eighths].mean(), max_mean) << eighths;
    EXPECT_GT(differences[eighths].psnr(), min_psnr) << eighths;
    EXPECT_GT(differences[eighths].mean(), 0.1) << eighths << ": it was not decoded fast";
  }
  // Rectangles below twice the size are decoded as they are.
  differences = differences_of(files, 160);
  EXPECT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[8].levels, 0);
}

// Measures photographs: TRIREME_PHOTOGRAPHS names a folder of JPEG files. docs/performance.md has
// the figures.
TEST(ImageForms, FastDecodingOfPhotographs) {
  const char* const folder = std::getenv("TRIREME_PHOTOGRAPHS");
  if (folder == nullptr) GTEST_SKIP() << "TRIREME_PHOTOGRAPHS names no folder of JPEG files";
  std::vector<std::vector<std::byte>> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const io::File file(entry.path(), io::File::Mode::read);
    std::vector<std::byte>& bytes = files.emplace_back(static_cast<std::size_t>(file.size()));
    file.read_at(0, bytes.data(), file.size());
  }
  ASSERT_FALSE(files.empty()) << folder << " has no files";
  // Other pictures than those of docs/performance.md (at most 3.4 levels, at least 33.2 dB) may be
  // sharper. Rectangles at a wrong place differ by tens of levels.
  constexpr double max_mean = 8, min_psnr = 26;
  for (const std::int64_t size : {28, 56, 112})
    for (const auto& [eighths, difference] : differences_of(files, size)) {
      if (eighths == 8) {
        EXPECT_EQ(difference.levels, 0) << size << ": it was decoded exactly";
      } else {
        EXPECT_LT(difference.mean(), max_mean) << size << ", " << eighths << " eighths";
        EXPECT_GT(difference.psnr(), min_psnr) << size << ", " << eighths << " eighths";
      }
      std::printf("size %3d, %d / 8 of the resolution: %.0f values, mean %.2f levels, %.1f dB\n",
                  static_cast<int>(size), eighths, difference.values, difference.mean(),
                  difference.psnr());
    }
}

}  // namespace
}  // namespace trireme::data
