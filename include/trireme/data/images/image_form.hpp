// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trireme/data/images/image.hpp"
#include "trireme/data/options.hpp"
#include "trireme/ops/image.hpp"

namespace trireme::data {

/// Augmentation that reader threads apply after the crop, in this order.
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

/// Random augmentation of training images by the device. A sample's transform is a function of
/// (seed, epoch, sample), never of rank or thread. A mix is also a function of the partner's epoch
/// and sample.
struct Augmentation {
  std::uint64_t seed = 1;
  std::int64_t crop_padding = 0;       ///< random_crop: shift by up to this many pixels each way
  bool flip = false;                   ///< mirror with probability 1/2
  std::int64_t height = 0, width = 0;  ///< of images as the model takes them
  RandomErasing erase = {};
  PairMixing mixing = {};
  /// Returns the transform of one sample in one epoch, without a mix.
  ops::ImageTransform transform_of(std::int64_t epoch, std::int64_t sample) const;
  /// Draws how two partners are mixed, from their keys [2] (sample_key()), into transforms [2].
  void mix_pair(const std::uint64_t* keys, ops::ImageTransform* transforms) const;
};

/// A step from a stored image to the input of the model, in this order.
enum class ImageStep : std::uint8_t { scale, shift, mirror, colors, erase, mix };
/// Where a step runs: in reader threads (Dataset::read), or on the device (ops::prepare_images).
enum class StepPlace : std::uint8_t { reader, device };

/// The steps of the images of a set, and the place of each, which is decided here alone. Readers
/// decode before the first step; the device normalizes before it erases.
class ImagePipeline {
 public:
  /// Returns the pipeline of training images, and that of an evaluation, which decodes exactly.
  static ImagePipeline training(const AugmentOptions& options, std::uint64_t seed,
                                Decoding decoding = Decoding::exact);
  static ImagePipeline evaluation(const AugmentOptions& options);

  bool has(ImageStep step, StepPlace place) const;
  /// Returns what the readers do.
  const ImageForm& form() const { return form_; }
  /// Returns what the loader draws for the device: images of the extents that the model takes.
  Augmentation augmentation(ImageExtents image) const;
  /// Returns which of the draws the device applies beside shifts and mirrors, without statistics.
  ops::ImagePreparation preparation() const;

 private:
  struct Step {
    ImageStep step;
    StepPlace place;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> steps_;
  ImageForm form_;
  AugmentOptions options_;
};

/// Returns the normalization of images of `channels` channels: [2, channels], means and then 1 /
/// std; empty without data.augment.normalize, whose one number is that of all channels.
std::vector<float> normalization_of(const AugmentOptions& options, std::int64_t channels);
/// Puts it into a preparation. `place` brings the numbers of many channels to where kernels can
/// read them.
void set_normalization(const std::vector<float>& statistics,
                       const std::function<Tensor(const std::vector<float>&)>& place,
                       ops::ImagePreparation& preparation);

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
