// Draws the random shift and mirror of one training image from (seed, epoch, sample).
#include "trireme/base/philox.hpp"
#include "trireme/data/loader.hpp"

namespace trireme::data {

ops::ImageTransform Augmentation::transform_of(std::int64_t epoch, std::int64_t sample) const {
  ops::ImageTransform transform;
  if (crop_padding == 0 && !flip) return transform;
  const RandomWords random = philox(random_key(seed, "augment"), static_cast<std::uint64_t>(sample),
                                    static_cast<std::uint64_t>(epoch));
  const std::uint64_t shifts = static_cast<std::uint64_t>(2 * crop_padding + 1);
  const auto shift = [&](std::uint32_t word) {
    return static_cast<std::int16_t>(static_cast<std::int64_t>((word * shifts) >> 32) -
                                     crop_padding);
  };
  transform.row = shift(random.word[0]);
  transform.column = shift(random.word[1]);
  transform.flip = flip ? static_cast<std::uint8_t>(random.word[2] >> 31) : std::uint8_t{0};
  return transform;
}

}  // namespace trireme::data
