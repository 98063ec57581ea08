// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Rows [top, bottom) and columns [left, right) of an image as the model takes it.
struct PixelRange {
  std::uint16_t top = 0, bottom = 0, left = 0, right = 0;
};

/// How a sample is mixed with its partner, the sample in row r xor 1 of the micro-batch.
enum class Mix : std::uint8_t {
  none,
  mixup,  ///< weight * own + (1 - weight) * partner
  cutmix  ///< the partner's pixels in a range
};

/// Augmentation of one sample: the row and column of the crop window in the stored image, and
/// whether it is mirrored. Then the pixels of `erased` become 0, and the sample is
/// mixed with its partner.
struct ImageTransform {
  std::int16_t row = 0, column = 0;
  std::uint8_t flip = 0;
  Mix mix = Mix::none;
  PixelRange erased = {}, pasted = {};  ///< pasted: from the partner, for cutmix
  float weight = 1;                     ///< of the own class in the loss; mixup: of the own pixels
};

/// Channels of images that are padded with zeros.
constexpr std::int64_t padded_image_channels = 8;

/// Type of the numbers of stored images.
enum class PixelType : std::uint8_t {
  uint8,    ///< divided by 255
  uint16,   ///< divided by 65535
  float16,  ///< as they are
  float32   ///< as they are
};

/// Channels of which PrepareImages holds mean and scale itself.
constexpr std::int64_t max_inline_channels = 4;

/// Arguments of prepare_images(): crops, mirrors and standardizes a batch of stored images.
template <class T>
struct PrepareImages {
  /// written_channels is the same as channels, or padded_image_channels: the others are zeros.
  std::int64_t batch = 0, channels = 0, written_channels = 0;
  std::int64_t stored_height = 0, stored_width = 0, height = 0, width = 0;
  float mean[max_inline_channels] = {0, 0, 0, 0}, inverse_std[max_inline_channels] = {1, 1, 1, 1};
  /// For more channels: [2, channels] mean, then inverse_std, in memory that the kernels can read;
  /// null: 0 and 1.
  const float* statistics = nullptr;
  /// False: `erased` and `mix` of the transforms are not read. A sample that is mixed has a
  /// partner.
  bool erases_or_mixes = false;
  PixelType pixel_type = PixelType::uint8;
  const void* x = nullptr;                     ///< [batch, stored_height, stored_width, channels]
  const ImageTransform* transforms = nullptr;  ///< [batch]
  /// [batch, height, width, written_channels]: (x - mean) * inverse_std, rounded to T; then erased
  /// and mixed. Integers are divided first, as PixelType says. Outside of the stored image x is 0
  /// for integers, and the mean for other numbers.
  T* y = nullptr;
};
/// Enqueues the preparation. Reads each used number once, and again if the partner uses it too.
/// Writes y once.
template <class T>
void prepare_images(const Stream&, const PrepareImages<T>&);

}  // namespace trireme::kernels
