// SPDX-License-Identifier: Apache-2.0
//
// Draws the operations of color_jitter and rand_augment from (seed, epoch, sample), and executes
// what reader threads do behind the crop. The distributions are torchvision's.
#include <algorithm>
#include <cmath>
#include <utility>

#include "image_operation.hpp"
#include "random_draws.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/loader.hpp"

namespace trireme::data {
namespace {

using Kind = ImageOperation::Kind;

/// Returns number `i` of the numbers from `first` to `last` in equal steps, in single precision as
/// torch.linspace.
double magnitude_between(double first, double last, std::int64_t i) {
  constexpr std::int64_t end = max_rand_augment_magnitude;
  const float from = static_cast<float>(first), to = static_cast<float>(last),
              step = (to - from) / static_cast<float>(end);
  return i < (end + 1) / 2 ? from + step * static_cast<float>(i)
                           : to - step * static_cast<float>(end - i);
}

}  // namespace

std::array<ImageOperation, 4> draw_color_jitter(const ColorJitter& jitter, std::uint64_t seed,
                                                std::int64_t epoch, std::int64_t sample) {
  const std::uint64_t key = random_key(seed, "color_jitter");
  const auto draw = [&](std::uint64_t i) {
    return philox(key, static_cast<std::uint64_t>(sample),
                  static_cast<std::uint64_t>(epoch) * 2 + i);
  };
  const RandomWords values = draw(0), order = draw(1);
  std::array<ImageOperation, 4> operations;
  const auto set = [&](std::size_t i, Kind kind, double strength, double low, double high) {
    if (strength > 0)
      operations[i] = {kind,
                       low + (high - low) * static_cast<double>(uniform_unit(values.word[i]))};
  };
  const auto set_factor = [&](std::size_t i, Kind kind, double strength) {
    set(i, kind, strength, std::max(0.0, 1 - strength), 1 + strength);
  };
  set_factor(0, Kind::brightness, jitter.brightness);
  set_factor(1, Kind::contrast, jitter.contrast);
  set_factor(2, Kind::saturation, jitter.saturation);
  set(3, Kind::hue, jitter.hue, -jitter.hue, jitter.hue);
  for (int i = 3; i > 0; --i)
    std::swap(operations[static_cast<std::size_t>(i)],
              operations[static_cast<std::size_t>(integer_below(i + 1, order.word[i]))]);
  return operations;
}

ImageOperation rand_augment_operation(Kind kind, std::int64_t magnitude, bool negative,
                                      ImageExtents image) {
  const auto between = [&](double first, double last) {
    return magnitude_between(first, last, magnitude);
  };
  const auto with_sign = [&](double last) {
    return negative ? -between(0, last) : between(0, last);
  };
  const auto pixels = [](std::int64_t side) { return 150.0 / 331.0 * static_cast<double>(side); };
  using enum ImageOperation::Kind;
  switch (kind) {
    case shear_x:
    case shear_y: return {kind, with_sign(0.3)};
    case translate_x: return {kind, with_sign(pixels(image.width))};
    case translate_y: return {kind, with_sign(pixels(image.height))};
    case rotate: return {kind, with_sign(30)};
    case brightness:
    case saturation:
    case contrast:
    case sharpness: return {kind, 1 + with_sign(0.9)};
    case posterize: return {kind, 8 - std::nearbyint(static_cast<double>(magnitude) / 7.5)};
    case solarize: return {kind, 255 * between(1, 0)};
    case identity:
    case autocontrast:
    case equalize:
    case hue: break;
  }
  return {kind, 0};
}

ImageOperation draw_rand_augment(const RandAugment& options, std::int64_t position,
                                 ImageExtents image, std::uint64_t seed, std::int64_t epoch,
                                 std::int64_t sample) {
  const RandomWords random =
      philox(random_key(seed, "rand_augment"), static_cast<std::uint64_t>(sample),
             static_cast<std::uint64_t>(epoch * max_rand_augment_count + position));
  return rand_augment_operation(
      static_cast<Kind>(integer_below(rand_augment_kinds, random.word[0])), options.magnitude,
      random.word[1] >> 31 != 0, image);
}

void augment_image(const ReaderAugmentation& options, std::uint64_t seed, std::int64_t epoch,
                   std::int64_t sample, const RgbImage& image, std::vector<std::byte>& scratch) {
  const Augmentation geometry{
      .seed = seed, .crop_padding = options.random_crop, .flip = options.flip};
  const ops::ImageTransform place = geometry.transform_of(epoch, sample);
  if (place.row != 0 || place.column != 0 || place.flip != 0)
    shift_and_mirror(image, place.row, place.column, place.flip != 0, scratch);
  if (options.color_jitter.is_on())
    for (const ImageOperation& operation :
         draw_color_jitter(options.color_jitter, seed, epoch, sample))
      apply(operation, image, scratch);
  for (std::int64_t i = 0; i < options.rand_augment.count; ++i)
    apply(draw_rand_augment(options.rand_augment, i, {image.height, image.width}, seed, epoch,
                            sample),
          image, scratch);
}

}  // namespace trireme::data
