// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/image/image.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Augmentation of one sample: shift of the crop window, mirror flag, erased pixels, and the mix
/// with its partner.
using kernels::ImageTransform;
using kernels::Mix;
using kernels::PixelRange;

/// Channels of which ImagePreparation holds mean and standard deviation itself.
using kernels::max_inline_channels;

/// Normalization of stored images to the network's input, in y's dtype:
///   y[b, i, j, c] = (x[b, i + row, j' + column, c] / 255 - mean[c]) / std[c]
/// Only uint8 is divided by 255: uint16 is divided by 65535, float16 and float32 by nothing. j' is
/// j, or its mirror image if the sample is flipped. Pixels outside the stored image are 0 before
/// normalization, black as in torchvision's RandomCrop.
///
/// With `erases`, pixels in erased[b] become 0. With `mixes`, y[b] is then mixed with its partner
/// p = b xor 1, which is shifted, mirrored and erased by its own transform, but not mixed:
///   mixup:  y[b] = weight[b] * y[b] + (1 - weight[b]) * y[p]
///   cutmix: y[b, i, j] = y[p, i, j] in pasted[b]
struct ImagePreparation {
  float mean[max_inline_channels] = {0, 0, 0, 0};
  float inverse_std[max_inline_channels] = {1, 1, 1, 1};
  /// For more channels: float32 [2, C], the means and then 1 / std, in memory that the kernels can
  /// read; undefined: 0 and 1.
  Tensor statistics = {};
  bool erases = false, mixes = false;
};
/// Channels of images that are padded with zeros for the libraries of a GPU, which have more
/// engines for a multiple of 8 channels in 16-bit types.
using kernels::padded_image_channels;
/// Returns the channels in memory of images of `channels` channels, as the input of a convolution
/// in `dtype` on the device kind `target`.
constexpr std::int64_t channels_in_memory(DeviceKind target, DType dtype, std::int64_t channels) {
  return target == DeviceKind::cuda && dtype != DType::float32 && channels < padded_image_channels
             ? padded_image_channels
             : channels;
}
/// Enqueues the preparation of x [B, H, W, C], uint8, uint16, float16 or float32, into y [B, H',
/// W', C], or into padded_image_channels channels, of which the further ones are 0. `transforms`
/// [B] is in memory that the kernels can read. With `mixes`, B is even.
void prepare_images(Context&, const ImagePreparation&, const Tensor& x,
                    const ImageTransform* transforms, const Tensor& y);

}  // namespace trireme::ops
