// SPDX-License-Identifier: Apache-2.0
//
// Targets that are maps move as the device moves their images: a map with the numbers of its image
// is the prepared image, and missing where that is 0 from outside.
#include "trireme/data/targets/move_map.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/tensor/arena.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t height = 5, width = 4;

/// Returns an image [height, width, channels] of the numbers 1, 2, 3 ...
std::vector<float> counted_image(std::int64_t channels) {
  std::vector<float> image;
  for (std::int64_t i = 0; i < height * width * channels; ++i)
    image.push_back(static_cast<float>(i + 1));
  return image;
}

/// Returns the image after the device's part of the augmentation.
std::vector<float> prepared(std::vector<float> image, std::int64_t channels,
                            const ops::ImageTransform& transform) {
  std::vector<float> result(image.size());
  Arena workspace({}, "workspace", 0), library({}, "library", 0);
  ops::Context context({}, workspace, library);
  const Shape shape{1, height, width, channels};
  ops::prepare_images(context, {}, {image.data(), DType::float32, DeviceKind::cpu, shape},
                      &transform, {result.data(), DType::float32, DeviceKind::cpu, shape});
  return result;
}

std::vector<ops::ImageTransform> transforms() {
  std::vector<ops::ImageTransform> all;
  for (const int row : {-6, -1, 0, 2})
    for (const int column : {-3, 0, 1, 4})
      for (const int flip : {0, 1}) {
        ops::ImageTransform transform;
        transform.row = row;
        transform.column = column;
        transform.flip = flip;
        all.push_back(transform);
      }
  return all;
}

TEST(MoveMap, MovesNumbersAsTheDeviceMovesImages) {
  for (const std::int64_t channels : {1, 3}) {
    const SampleInfo info{DType::float32, {}, {height, width, channels}, DType::float32};
    for (const ops::ImageTransform& transform : transforms()) {
      std::vector<float> map = counted_image(channels);
      std::vector<std::byte> scratch;
      const std::vector<float> expected = prepared(map, channels, transform);
      move_map(info, transform, map.data(), scratch);
      for (std::size_t i = 0; i < map.size(); ++i)
        EXPECT_EQ(std::isnan(map[i]) ? 0 : map[i], expected[i])
            << transform.row << ", " << transform.column << ", " << transform.flip;
    }
  }
}

TEST(MoveMap, MovesClassesAsTheDeviceMovesImages) {
  const SampleInfo info{DType::float32, {}, {height, width}, DType::int32};
  for (const ops::ImageTransform& transform : transforms()) {
    const std::vector<float> image = counted_image(1), expected = prepared(image, 1, transform);
    std::vector<std::int32_t> map(image.begin(), image.end());
    std::vector<std::byte> scratch;
    move_map(info, transform, map.data(), scratch);
    for (std::size_t i = 0; i < map.size(); ++i)
      EXPECT_EQ(map[i] == -1 ? 0 : map[i], static_cast<std::int32_t>(expected[i]))
          << transform.row << ", " << transform.column << ", " << transform.flip;
  }
}

}  // namespace
}  // namespace trireme::data
