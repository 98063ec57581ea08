// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/data/images/image.hpp"
#include "trireme/data/images/image_form.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

/// An RGB image that is changed where it is: uint8 [height, width, 3].
struct RgbImage {
  std::int64_t height = 0, width = 0;
  std::uint8_t* pixels = nullptr;
};

/// One operation of color_jitter or rand_augment: that of torchvision on PIL images. The formulas
/// are in docs/reference/numerics.md.
struct ImageOperation {
  /// Those of RandAugment come first, in torchvision's order.
  enum class Kind : std::uint8_t {
    identity,
    shear_x,      ///< value: columns for each row
    shear_y,      ///< value: rows for each column
    translate_x,  ///< value: pixels to the right, rounded towards 0
    translate_y,  ///< value: pixels down, rounded towards 0
    rotate,       ///< value: degrees, counterclockwise
    brightness,   ///< value: factor, 1 changes nothing
    saturation,   ///< value: factor
    contrast,     ///< value: factor
    sharpness,    ///< value: factor
    posterize,    ///< value: bits that remain, 1 to 8
    solarize,     ///< value: levels from here on are inverted
    autocontrast,
    equalize,
    hue  ///< value: part of a turn, -0.5 to 0.5
  };
  Kind kind = Kind::identity;
  double value = 0;
  bool operator==(const ImageOperation&) const = default;
};

/// The number of operations that RandAugment draws from.
inline constexpr int rand_augment_kinds = 14;

/// Executes an operation. `scratch` is memory that is used again.
void apply(const ImageOperation& operation, const RgbImage& image, std::vector<std::byte>& scratch);

/// Shifts an image: pixel (0, 0) becomes that at (row, column), and pixels from outside are black.
/// Then mirrors it.
void shift_and_mirror(const RgbImage& image, std::int64_t row, std::int64_t column, bool mirror,
                      std::vector<std::byte>& scratch);

/// Draws the operations of color_jitter in their order; `identity` where one is off.
std::array<ImageOperation, 4> draw_color_jitter(const ColorJitter& jitter, std::uint64_t seed,
                                                std::int64_t epoch, std::int64_t sample);

/// Returns an operation of RandAugment at a magnitude from 0 to 30. `negative` changes the sign of
/// the operations that have one.
ImageOperation rand_augment_operation(ImageOperation::Kind kind, std::int64_t magnitude,
                                      bool negative, ImageExtents image);

/// Draws operation number `position` (0 .. count - 1) of rand_augment.
ImageOperation draw_rand_augment(const RandAugment& options, std::int64_t position,
                                 ImageExtents image, std::uint64_t seed, std::int64_t epoch,
                                 std::int64_t sample);

/// Draws and executes what reader threads do behind the crop. A function of (seed, epoch, sample).
void augment_image(const ReaderAugmentation& options, std::uint64_t seed, std::int64_t epoch,
                   std::int64_t sample, const RgbImage& image, std::vector<std::byte>& scratch);

}  // namespace trireme::data
