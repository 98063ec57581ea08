// SPDX-License-Identifier: Apache-2.0
//
// Decides which steps readers do and which the device, then gives images the size that the model
// takes: random resized crops in training, scaling and a center crop in evaluation. Reader threads
// call form_image() in Dataset::read().
#include "trireme/data/images/image_form.hpp"

#include <algorithm>
#include <cmath>

#include "random_draws.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {

ImagePipeline ImagePipeline::training(const AugmentOptions& options, std::uint64_t seed,
                                      Decoding decoding) {
  ImagePipeline pipeline;
  pipeline.options_ = options;
  const auto add = [&](bool is_on, ImageStep step, StepPlace place) {
    if (is_on) pipeline.steps_.push_back({step, place});
  };
  // 1. The device does all that it can, but readers must move images before they change colors.
  const RandomResizedCrop& crop = options.random_resized_crop;
  const StepPlace mover = options.changes_colors() ? StepPlace::reader : StepPlace::device;
  add(crop.size > 0, ImageStep::scale, StepPlace::reader);
  add(options.random_crop > 0, ImageStep::shift, mover);
  add(options.flip, ImageStep::mirror, mover);
  add(options.changes_colors(), ImageStep::colors, StepPlace::reader);
  add(options.erase.probability > 0, ImageStep::erase, StepPlace::device);
  add(options.mixing.is_on(), ImageStep::mix, StepPlace::device);
  // 2. The part of the readers.
  ImageForm& form = pipeline.form_;
  form.seed = seed;
  if (pipeline.has(ImageStep::shift, StepPlace::reader))
    form.augmentation.random_crop = options.random_crop;
  form.augmentation.flip = pipeline.has(ImageStep::mirror, StepPlace::reader);
  form.augmentation.color_jitter = options.color_jitter;
  form.augmentation.rand_augment = options.rand_augment;
  if (!pipeline.has(ImageStep::scale, StepPlace::reader)) return pipeline;
  form.kind = ImageForm::Kind::random_resized_crop;
  form.size = crop.size;
  form.scale = crop.scale;
  form.ratio = crop.ratio;
  form.decoding = decoding;
  return pipeline;
}

ImagePipeline ImagePipeline::evaluation(const AugmentOptions& options) {
  ImagePipeline pipeline;
  const EvaluationCrop& crop = options.evaluate;
  if (crop.crop == 0) return pipeline;
  pipeline.steps_ = {{ImageStep::scale, StepPlace::reader}};
  pipeline.form_.kind = ImageForm::Kind::resize_and_crop;
  pipeline.form_.size = crop.crop;
  pipeline.form_.resize = crop.resize;
  return pipeline;
}

bool ImagePipeline::has(ImageStep step, StepPlace place) const {
  return std::find(steps_.begin(), steps_.end(), Step{step, place}) != steps_.end();
}

Augmentation ImagePipeline::augmentation(ImageExtents image) const {
  Augmentation draws{.seed = form_.seed, .height = image.height, .width = image.width};
  if (has(ImageStep::shift, StepPlace::device)) draws.crop_padding = options_.random_crop;
  draws.flip = has(ImageStep::mirror, StepPlace::device);
  if (has(ImageStep::erase, StepPlace::device)) draws.erase = options_.erase;
  if (has(ImageStep::mix, StepPlace::device)) draws.mixing = options_.mixing;
  return draws;
}

ops::ImagePreparation ImagePipeline::preparation() const {
  return {.erases = has(ImageStep::erase, StepPlace::device),
          .mixes = has(ImageStep::mix, StepPlace::device)};
}

std::vector<float> normalization_of(const AugmentOptions& options, std::int64_t channels) {
  if (options.mean.empty()) return {};
  const auto count = static_cast<std::size_t>(channels);
  std::vector<float> statistics(2 * count);
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t given = options.mean.size() == 1 ? 0 : c;
    statistics[c] = static_cast<float>(options.mean[given]);
    statistics[count + c] = static_cast<float>(1.0 / options.std[given]);
  }
  return statistics;
}

void set_normalization(const std::vector<float>& statistics,
                       const std::function<Tensor(const std::vector<float>&)>& place,
                       ops::ImagePreparation& preparation) {
  const std::size_t channels = statistics.size() / 2;
  if (channels > static_cast<std::size_t>(ops::max_inline_channels)) {
    preparation.statistics = place(statistics);
    return;
  }
  std::copy_n(statistics.begin(), channels, preparation.mean);
  std::copy_n(statistics.begin() + static_cast<std::ptrdiff_t>(channels), channels,
              preparation.inverse_std);
}

ImageExtents extents_of(const ImageForm& form, ImageExtents stored) {
  return form.kind == ImageForm::Kind::stored ? stored : ImageExtents{form.size, form.size};
}

PixelBox draw_resized_crop(const ImageForm& form, ImageExtents image, std::int64_t epoch,
                           std::int64_t sample) {
  constexpr std::uint64_t tries = 10;
  const std::uint64_t key = random_key(form.seed, "random_resized_crop");
  const double area = static_cast<double>(image.height * image.width);
  const double low = std::log(form.ratio[0]), high = std::log(form.ratio[1]);
  for (std::uint64_t i = 0; i < tries; ++i) {
    const RandomWords random = philox(key, static_cast<std::uint64_t>(sample),
                                      static_cast<std::uint64_t>(epoch) * tries + i);
    const double part =
        area * (form.scale[0] + (form.scale[1] - form.scale[0]) * unit(random.word[0]));
    const double ratio = std::exp(low + (high - low) * unit(random.word[1]));
    const std::int64_t width = rounded(std::sqrt(part * ratio)),
                       height = rounded(std::sqrt(part / ratio));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    return {integer_below(image.height - height + 1, random.word[2]),
            integer_below(image.width - width + 1, random.word[3]), height, width};
  }
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  std::int64_t height = image.height, width = image.width;
  if (ratio < form.ratio[0])
    height = std::clamp<std::int64_t>(rounded(static_cast<double>(width) / form.ratio[0]), 1,
                                      image.height);
  else if (ratio > form.ratio[1])
    width = std::clamp<std::int64_t>(rounded(static_cast<double>(height) * form.ratio[1]), 1,
                                     image.width);
  return {(image.height - height) / 2, (image.width - width) / 2, height, width};
}

PixelBox box_of(const ImageForm& form, ImageExtents image, std::int64_t epoch,
                std::int64_t sample) {
  TRIREME_EXPECT(form.kind != ImageForm::Kind::stored);
  return form.kind == ImageForm::Kind::random_resized_crop
             ? draw_resized_crop(form, image, epoch, sample)
             : PixelBox{0, 0, image.height, image.width};
}

std::optional<ImageExtents> smallest_extents(const ImageForm& form) {
  if (form.decoding == Decoding::exact) return std::nullopt;
  return ImageExtents{form.size, form.size};
}

void form_image(const ImageForm& form, const ImageView& part, const PixelBox& box,
                const FractionalBox& from, std::byte* out) {
  const PixelBox whole{0, 0, form.size, form.size};
  if (form.kind == ImageForm::Kind::random_resized_crop) {
    scale_image(part, from, {form.size, form.size}, whole, out);
    return;
  }
  const ImageExtents scaled = scaled_to_shorter({box.height, box.width}, form.resize);
  scale_image(part, from, scaled, center_box(scaled, form.size, form.size), out);
}

}  // namespace trireme::data
