// SPDX-License-Identifier: Apache-2.0
//
// Operations on colors and geometry: equal to torchvision's, and their draws.
//
// tests/data/make_image_operations.py made the images to compare with.
#include "data/images/image_operation.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "trireme/data/loader.hpp"
#include "trireme/io/file.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::data {
namespace {

using Kind = ImageOperation::Kind;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

RgbImage rgb_of(Image& image) {
  return {image.height, image.width, reinterpret_cast<std::uint8_t*>(image.pixels.data())};
}

/// Returns image number `i` of a column of images.
Image part_of(const Image& column, std::int64_t i, std::int64_t height) {
  const auto begin = column.pixels.begin() + i * height * column.row_bytes();
  return {height, column.width, 3, {begin, begin + height * column.row_bytes()}};
}

Image random_image(std::int64_t height, std::int64_t width) {
  Image image{height, width, 3, {}};
  for (std::int64_t i = 0; i < height * width * 3; ++i)
    image.pixels.push_back(static_cast<std::byte>(i * i % 251 + i / 7));
  return image;
}

const std::map<std::string, Kind> kinds{{"Identity", Kind::identity},
                                        {"ShearX", Kind::shear_x},
                                        {"ShearY", Kind::shear_y},
                                        {"TranslateX", Kind::translate_x},
                                        {"TranslateY", Kind::translate_y},
                                        {"Rotate", Kind::rotate},
                                        {"Brightness", Kind::brightness},
                                        {"Color", Kind::saturation},
                                        {"Contrast", Kind::contrast},
                                        {"Sharpness", Kind::sharpness},
                                        {"Posterize", Kind::posterize},
                                        {"Solarize", Kind::solarize},
                                        {"AutoContrast", Kind::autocontrast},
                                        {"Equalize", Kind::equalize},
                                        {"brightness", Kind::brightness},
                                        {"contrast", Kind::contrast},
                                        {"saturation", Kind::saturation},
                                        {"hue", Kind::hue}};

TEST(ImageOperations, HaveThePixelsOfTorchvision) {
  const std::string folder = TRIREME_TEST_DATA;
  const std::string file = read_text(folder + "/image_operations.png");
  const Image column = decode_image(std::as_bytes(std::span(file)));
  std::istringstream lines(read_text(folder + "/image_operations.txt"));
  std::string family, name;
  std::int64_t height = 0, width = 0;
  lines >> family >> height >> width;
  ASSERT_EQ(column.width, width);
  std::int64_t count = 1;
  std::vector<std::byte> scratch;
  for (; lines >> family >> name; ++count) {
    ImageOperation operation{kinds.at(name)};
    std::ostringstream parameters;
    if (family == "rand_augment") {
      std::int64_t magnitude = 0, sign = 0;
      lines >> magnitude >> sign;
      operation = rand_augment_operation(operation.kind, magnitude, sign < 0, {height, width});
      parameters << magnitude << " " << sign;
    } else {
      lines >> operation.value;
      parameters << operation.value;
    }
    Image image = part_of(column, 0, height);
    apply(operation, rgb_of(image), scratch);
    EXPECT_EQ(image.pixels, part_of(column, count, height).pixels)
        << family << " " << name << " " << parameters.str();
  }
  EXPECT_EQ(count * height, column.height);
  EXPECT_EQ(count, 57);
}

TEST(ImageOperations, WorkOnImagesOfAnySize) {
  constexpr std::size_t margin = 64;
  constexpr std::byte mark{0xA5};
  std::vector<std::byte> scratch;
  for (const auto& [height, width] : {std::pair(1, 1), {1, 7}, {7, 1}, {2, 2}, {3, 300}}) {
    for (int kind = 0; kind <= static_cast<int>(Kind::hue); ++kind) {
      Image image = random_image(height, width);
      const Image before = image;
      apply(rand_augment_operation(static_cast<Kind>(kind), 0, false, {height, width}),
            rgb_of(image), scratch);
      // Magnitude 0 changes nothing, except for those that have none. Solarize inverts 255 only.
      if (kind < static_cast<int>(Kind::solarize)) {
        EXPECT_EQ(image.pixels, before.pixels) << kind << " of " << height << " x " << width;
      }
      // The largest magnitude writes no byte outside of the image, and does not depend on what was
      // in the scratch memory.
      const ImageOperation strong =
          rand_augment_operation(static_cast<Kind>(kind), 30, true, {height, width});
      std::vector<std::byte> memory(image.pixels.size() + 2 * margin, mark), fresh;
      std::copy(image.pixels.begin(), image.pixels.end(), memory.begin() + margin);
      apply(strong, {height, width, reinterpret_cast<std::uint8_t*>(memory.data() + margin)},
            scratch);
      apply(strong, rgb_of(image), fresh);
      EXPECT_TRUE(std::equal(image.pixels.begin(), image.pixels.end(), memory.begin() + margin))
          << kind << " of " << height << " x " << width;
      EXPECT_EQ(std::count(memory.begin(), memory.begin() + margin, mark), margin) << kind;
      EXPECT_EQ(std::count(memory.end() - margin, memory.end(), mark), margin) << kind;
    }
  }
}

// With colors the readers shift and mirror, else the device: both must do the same.
TEST(ImageOperations, ReadersShiftAndMirrorAsTheDevice) {
  const Augmentation augmentation{.seed = 3, .crop_padding = 4, .flip = true};
  constexpr std::int64_t height = 7, width = 9, bytes = height * width * 3;
  Arena workspace({}, "workspace", 0), library({}, "library", 0),
      memory({}, "prepared image", bytes * 4 + 64);
  ops::Context context({}, workspace, library);
  const Tensor y = memory.allocate(DType::float32, {1, height, width, 3});
  std::vector<std::byte> scratch;
  for (std::int64_t sample = 0; sample < 60; ++sample) {
    const ops::ImageTransform transform = augmentation.transform_of(1, sample);
    Image image = random_image(height, width);
    ops::prepare_images(context, {{}, {1, 1, 1, 1}},
                        {image.pixels.data(), DType::uint8, DeviceKind::cpu, {1, height, width, 3}},
                        &transform, y);
    shift_and_mirror(rgb_of(image), transform.row, transform.column, transform.flip != 0, scratch);
    for (std::int64_t i = 0; i < bytes; ++i)
      ASSERT_EQ(std::to_integer<int>(image.pixels[static_cast<std::size_t>(i)]),
                std::lround(y.as<float>()[i] * 255))
          << "sample " << sample << ", byte " << i;
  }
}

TEST(ColorDraws, JitterIsUniformInItsRangesAndItsOrder) {
  const ColorJitter jitter{.brightness = 0.4, .contrast = 1.5, .saturation = 0, .hue = 0.1};
  constexpr int draws = 4800;
  std::map<Kind, std::vector<double>> values;
  std::map<std::vector<Kind>, int> orders;
  for (int sample = 0; sample < draws; ++sample) {
    const auto operations = draw_color_jitter(jitter, 7, 2, sample);
    EXPECT_EQ(operations, draw_color_jitter(jitter, 7, 2, sample));
    std::vector<Kind> order;
    for (const ImageOperation& operation : operations) {
      order.push_back(operation.kind);
      values[operation.kind].push_back(operation.value);
    }
    ++orders[order];
  }
  const auto expect_uniform = [&](Kind kind, double low, double high) {
    std::vector<double>& of_kind = values[kind];
    ASSERT_EQ(of_kind.size(), std::size_t{draws});
    std::sort(of_kind.begin(), of_kind.end());
    EXPECT_GE(of_kind.front(), low);
    EXPECT_LE(of_kind.back(), high);
    // The standard error of a quartile is 0.43 / sqrt(draws) of the range; tolerance: five of them.
    const double tolerance = 5 * 0.433 / std::sqrt(draws) * (high - low);
    for (const int quarter : {1, 2, 3})
      EXPECT_NEAR(of_kind[static_cast<std::size_t>(quarter * draws / 4)],
                  low + (high - low) * quarter / 4, tolerance);
  };
  expect_uniform(Kind::brightness, 0.6, 1.4);
  expect_uniform(Kind::contrast, 0, 2.5);
  expect_uniform(Kind::hue, -0.1, 0.1);
  EXPECT_EQ(values.count(Kind::saturation), 0u);
  // Binomial: 200 +- 13.8 of each order; tolerance: five standard deviations.
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 200, 70);
  EXPECT_NE(draw_color_jitter(jitter, 7, 2, 1), draw_color_jitter(jitter, 7, 3, 1));
  EXPECT_NE(draw_color_jitter(jitter, 7, 2, 1), draw_color_jitter(jitter, 8, 2, 1));
}

TEST(ColorDraws, RandAugmentTakesEveryOperationWithBothSigns) {
  const RandAugment options{.count = 2, .magnitude = 9};
  const auto draw = [&](std::int64_t position, std::int64_t epoch, std::int64_t sample) {
    return draw_rand_augment(options, position, {224, 331}, 7, epoch, sample);
  };
  constexpr int draws = 7000;
  std::map<Kind, int> counts;
  std::set<double> shifts;
  int equal = 0;
  for (int sample = 0; sample < draws; ++sample) {
    const ImageOperation first = draw(0, 1, sample), second = draw(1, 1, sample);
    EXPECT_EQ(first, draw(0, 1, sample));
    ++counts[first.kind];
    equal += first.kind == second.kind;
    if (first.kind == Kind::translate_x) shifts.insert(first.value);
  }
  EXPECT_EQ(counts.size(), std::size_t{rand_augment_kinds});
  // Binomial: 500 +- 21.6 of each kind; tolerance: five standard deviations.
  for (const auto& [kind, count] : counts) EXPECT_NEAR(count, 500, 108) << static_cast<int>(kind);
  EXPECT_NEAR(equal, 500, 108) << "the operations of an image are independent";
  EXPECT_EQ(shifts, (std::set<double>{-45, 45}));
}

TEST(ColorDraws, AnImageIsMovedFirstThenJitteredThenChangedByRandAugment) {
  const ReaderAugmentation options{.random_crop = 3,
                                   .flip = true,
                                   .color_jitter = {0.4, 0.4, 0.4, 0.1},
                                   .rand_augment = {.count = 3, .magnitude = 12}};
  std::vector<std::byte> scratch;
  for (std::int64_t sample = 0; sample < 40; ++sample) {
    Image image = random_image(12, 10), expected = image;
    augment_image(options, 5, 2, sample, rgb_of(image), scratch);
    const ops::ImageTransform place =
        Augmentation{.seed = 5, .crop_padding = 3, .flip = true}.transform_of(2, sample);
    shift_and_mirror(rgb_of(expected), place.row, place.column, place.flip != 0, scratch);
    for (const ImageOperation& operation : draw_color_jitter(options.color_jitter, 5, 2, sample))
      apply(operation, rgb_of(expected), scratch);
    for (const std::int64_t i : {0, 1, 2})
      apply(draw_rand_augment(options.rand_augment, i, {12, 10}, 5, 2, sample), rgb_of(expected),
            scratch);
    EXPECT_EQ(image.pixels, expected.pixels) << sample;
  }
}

}  // namespace
}  // namespace trireme::data
