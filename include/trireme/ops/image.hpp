#pragma once

#include "trireme/kernels/image.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Augmentation of one sample: row and column shift of the crop window, and a mirror flag.
using kernels::ImageTransform;

/// Normalization of stored bytes to the network's input, in y's dtype:
///   y[b, i, j, c] = (x[b, i + row, j' + column, c] / 255 - mean[c]) / std[c]
/// j' is j, or its mirror image if the sample is flipped. Pixels outside the stored image are 0
/// before normalization, black as in torchvision's RandomCrop.
struct ImagePreparation {
  float mean[4] = {0, 0, 0, 0};
  float inverse_std[4] = {1, 1, 1, 1};
};
/// Enqueues the preparation of x uint8 [B, H, W, C] into y [B, H', W', C]. `transforms` [B] is in
/// memory that the kernels can read. Throws InputError if C is not 1 to 4.
void prepare_images(Context&, const ImagePreparation&, const Tensor& x,
                    const ImageTransform* transforms, const Tensor& y);

}  // namespace trireme::ops
