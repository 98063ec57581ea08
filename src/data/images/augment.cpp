// SPDX-License-Identifier: Apache-2.0
//
// Draws the random transform of one training image from (seed, epoch, sample).
#include "augment_draws.hpp"
#include "random_draws.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/loader.hpp"

namespace trireme::data {

ops::ImageTransform Augmentation::transform_of(std::int64_t epoch, std::int64_t sample) const {
  ops::ImageTransform transform;
  if (erase.probability > 0)
    transform.erased =
        draw_erased(erase, random_key(seed, "erase"), {height, width}, epoch, sample);
  if (crop_padding == 0 && !flip) return transform;
  const RandomWords random = philox(random_key(seed, "augment"), static_cast<std::uint64_t>(sample),
                                    static_cast<std::uint64_t>(epoch));
  const auto shift = [&](std::uint32_t word) {
    return static_cast<std::int16_t>(integer_below(2 * crop_padding + 1, word) - crop_padding);
  };
  transform.row = shift(random.word[0]);
  transform.column = shift(random.word[1]);
  transform.flip = flip ? static_cast<std::uint8_t>(random.word[2] >> 31) : std::uint8_t{0};
  return transform;
}

void Augmentation::mix_pair(const std::uint64_t* keys, ops::ImageTransform* transforms) const {
  const std::uint64_t coin = random_key(seed, "mixup or cutmix");
  const bool pastes =
      mixing.cutmix > 0 && (mixing.mixup == 0 || philox(coin, keys[0], keys[1]).word[0] >> 31);
  for (int row = 0; row < 2; ++row) {
    const std::uint64_t key = mix64(random_key(seed, pastes ? "cutmix" : "mixup") ^ keys[row]);
    const double weight = draw_beta(pastes ? mixing.cutmix : mixing.mixup, key);
    ops::ImageTransform& transform = transforms[row];
    transform.mix = pastes ? ops::Mix::cutmix : ops::Mix::mixup;
    transform.weight = static_cast<float>(weight);
    if (!pastes) continue;
    const RandomWords center = philox(key, 0, 0);
    const ImageExtents image{height, width};
    transform.pasted = pasted_around(integer_below(height, center.word[0]),
                                     integer_below(width, center.word[1]), weight, image);
    transform.weight = static_cast<float>(1 - part_of_area(transform.pasted, image));
  }
}

}  // namespace trireme::data
