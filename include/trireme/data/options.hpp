// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/arrays/array_form.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::data {

/// The longest side of images that a model takes, in pixels: oneDNN 3 divides by zero when it plans
/// convolutions over sides of 2^16 and more.
inline constexpr std::int64_t max_model_side = 1 << 15;

/// How training decodes JPEG files.
enum class Decoding : std::uint8_t {
  exact,  ///< at their resolution
  fast    ///< at the lowest one that is at least that of random_resized_crop
};

/// random_resized_crop = { size, scale, ratio }.
struct RandomResizedCrop {
  std::int64_t size = 0;                          ///< height and width of the result; 0: off
  std::array<double, 2> scale{0.08, 1};           ///< part of the image's area
  std::array<double, 2> ratio{3.0 / 4, 4.0 / 3};  ///< width / height
};

/// evaluate = { resize, crop }.
struct EvaluationCrop {
  std::int64_t resize = 0;  ///< the shorter side is scaled to this
  std::int64_t crop = 0;    ///< height and width of the center that is taken; 0: off
};

/// The largest number of operations, and the largest magnitude, of rand_augment.
inline constexpr std::int64_t max_rand_augment_count = 16, max_rand_augment_magnitude = 30;

/// color_jitter = { brightness, contrast, saturation, hue }; 0: off.
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0;  ///< factors from 1 - this to 1 + this
  double hue = 0;                                       ///< turns by up to this part each way
  bool is_on() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

/// rand_augment = { count, magnitude }.
struct RandAugment {
  std::int64_t count = 0;  ///< operations on each image; 0: off
  std::int64_t magnitude = 9;
};

/// Returns whether reader threads change colors. Then they also shift and mirror, before.
inline bool changes_colors(const ColorJitter& jitter, const RandAugment& rand_augment) {
  return jitter.is_on() || rand_augment.count > 0;
}

/// erase = { probability, scale, ratio }.
struct RandomErasing {
  double probability = 0;                   ///< 0: off
  std::array<double, 2> scale{0.02, 0.33};  ///< part of the image's area
  std::array<double, 2> ratio{0.3, 3.3};    ///< height / width
};

/// mixup and cutmix: samples of a micro-batch are mixed in pairs.
struct PairMixing {
  double mixup = 0, cutmix = 0;  ///< alpha; 0: off
  bool is_on() const { return mixup > 0 || cutmix > 0; }
};

/// Table [data.augment] of the deck.
struct AugmentOptions {
  std::vector<double> mean, std;  ///< normalize = { mean, std }, one a channel; empty: value / 255
  std::int64_t random_crop = 0;   ///< padding in pixels; 0: off
  bool flip = false;
  RandomResizedCrop random_resized_crop;
  EvaluationCrop evaluate;
  ColorJitter color_jitter;
  RandAugment rand_augment;
  RandomErasing erase;
  PairMixing mixing;
  bool changes_colors() const { return data::changes_colors(color_jitter, rand_augment); }
};

/// Table [data] of the deck.
struct DataOptions {
  /// Folders; with `hdf5` also files and patterns. The last two may be empty.
  std::string train, validation, test;
  /// Training samples that are used, the same ones in every epoch; 0: all.
  std::int64_t samples = 0;
  Shuffle shuffle = Shuffle::full;
  std::int64_t shuffle_block = 1024, shuffle_window = 65536;
  int workers = 0;  ///< reader threads; 0: workers = "auto"
  int prefetch = 4;
  double verify = 0;  ///< share of the checksum blocks that training compares in each epoch
  bool drop_last = true;
  Decoding decode = Decoding::exact;
  ArrayForm hdf5;
  AugmentOptions augment;
};

}  // namespace trireme::data
