#pragma once

#include "trireme/kernels/image.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// row, column, flip of one sample: shift of the crop window and mirroring.
using kernels::ImageTransform;

/// Stored bytes to the network's input: y[b, i, j, c] = (x[b, i + row, j' + column, c] / 255 -
/// mean[c]) / std[c], in y's dtype; what lies outside the stored image is 0 before normalisation (a
/// black pixel, as torchvision's RandomCrop pads).
struct ImagePreparation {
  float mean[4] = {0, 0, 0, 0};
  float inverse_std[4] = {1, 1, 1, 1};
};
/// x uint8 [B, H, W, C] (C <= 4), transforms [B] (device memory), y [B, H', W', C].
void prepare_images(Context&, const ImagePreparation&, const Tensor& x,
                    const ImageTransform* transforms, const Tensor& y);

}  // namespace trireme::ops
