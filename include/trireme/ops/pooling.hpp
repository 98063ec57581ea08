// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Maximum over square windows of x [B, H, W, C]. Padding counts as minus infinity. If several
/// elements of a window are equal, the first in row-major order receives the gradient. `kernel` is
/// at most 15.
struct MaxPool {
  std::int64_t batch = 0, height = 0, width = 0, channels = 0, kernel = 3, stride = 2, padding = 1;
  DType dtype = DType::float32;
  std::int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  Shape output_shape() const { return {batch, out_height(), out_width(), channels}; }
};
/// Enqueues y and `winners` (uint8, y's shape): the index of the maximum in its window, row *
/// kernel + column.
void max_pool_forward(Context&, const MaxPool&, const Tensor& x, const Tensor& y,
                      const Tensor& winners);
/// Enqueues dx = dy at the winners of all windows, 0 elsewhere.
void max_pool_backward(Context&, const MaxPool&, const Tensor& dy, const Tensor& winners,
                       const Tensor& dx);

/// Enqueues y [B, C] = mean over the pixels of x [B, P, C].
void average_pool_forward(Context&, std::int64_t batch, std::int64_t pixels, std::int64_t channels,
                          const Tensor& x, const Tensor& y);
/// Enqueues dx [B, P, C] = dy [B, C] / P.
void average_pool_backward(Context&, std::int64_t batch, std::int64_t pixels, std::int64_t channels,
                           const Tensor& dy, const Tensor& dx);

}  // namespace trireme::ops
