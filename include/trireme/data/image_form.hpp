// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "trireme/data/image.hpp"
#include "trireme/data/options.hpp"

namespace trireme::data {

/// Augmentation that reader threads apply after the crop, in this order. Without colors the device
/// shifts and mirrors.
struct ReaderAugmentation {
  std::int64_t random_crop = 0;  ///< shift by up to this many pixels each way
  bool flip = false;
  ColorJitter color_jitter;
  RandAugment rand_augment;
  bool changes_colors() const { return data::changes_colors(color_jitter, rand_augment); }
};

/// How the stored images of a set get the size that the model takes.
struct ImageForm {
  enum class Kind : std::uint8_t {
    stored,               ///< as they are stored, which must be the model's size
    random_resized_crop,  ///< training: a random rectangle, scaled to size x size
    resize_and_crop       ///< evaluation: the shorter side scaled to `resize`, then the center
  };
  Kind kind = Kind::stored;
  std::int64_t size = 0;    ///< height and width of the result, unless stored
  std::int64_t resize = 0;  ///< resize_and_crop: at least `size`
  /// random_resized_crop: the part of the image's area, and width / height, of the rectangle.
  std::array<double, 2> scale{}, ratio{};
  std::uint64_t seed = 1;
  ReaderAugmentation augmentation{};  ///< training, of RGB images
  Decoding decoding = Decoding::exact;
};

/// Returns the form of training images, and that of images of an evaluation, which are decoded
/// exactly.
ImageForm training_form(const AugmentOptions& options, std::uint64_t seed,
                        Decoding decoding = Decoding::exact);
ImageForm evaluation_form(const AugmentOptions& options);

/// Returns the extents that images of stored extents `stored` have for the model.
ImageExtents extents_of(const ImageForm& form, ImageExtents stored);

/// Draws the rectangle of a random resized crop. A function of (seed, epoch, sample) and of the
/// extents of the image.
///
/// As torchvision's RandomResizedCrop: up to ten times draws a part of the area, uniform in
/// `scale`, and a ratio, uniform in its logarithm in `ratio`, until the rectangle fits; its
/// position is uniform. Otherwise the largest rectangle of an allowed ratio in the center.
PixelBox draw_resized_crop(const ImageForm& form, ImageExtents image, std::int64_t epoch,
                           std::int64_t sample);

/// Returns the rectangle of an image that its form is made from. The kind is not `stored`.
PixelBox box_of(const ImageForm& form, ImageExtents image, std::int64_t epoch, std::int64_t sample);

/// Returns the extents below which an image need not be decoded; nothing: at its own resolution.
std::optional<ImageExtents> smallest_extents(const ImageForm& form);

/// Writes the form of an image to `out`: uint8 [height, width, channels] of extents_of(). The
/// rectangle `box` = box_of() of the image is at `from` in `part`.
void form_image(const ImageForm& form, const ImageView& part, const PixelBox& box,
                const FractionalBox& from, std::byte* out);

}  // namespace trireme::data
