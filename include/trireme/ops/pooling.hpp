// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Square windows over x [B, H, W, C], with `padding` pixels on each side. `kernel` is at most 15,
/// and more than `padding`.
struct Pooling {
  std::int64_t batch = 0, height = 0, width = 0, channels = 0, kernel = 3, stride = 2, padding = 1;
  DType dtype = DType::float32;
  std::int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  Shape output_shape() const { return {batch, out_height(), out_width(), channels}; }
};
/// Enqueues y = the maximum of each window, and `winners` (uint8, y's shape): its index in the
/// window, row * kernel + column. Padding counts as minus infinity. If several elements are equal,
/// the first in row-major order is the winner.
void max_pool_forward(Context&, const Pooling&, const Tensor& x, const Tensor& y,
                      const Tensor& winners);
/// Enqueues dx = dy at the winners of all windows, 0 elsewhere.
void max_pool_backward(Context&, const Pooling&, const Tensor& dy, const Tensor& winners,
                       const Tensor& dx);

/// Enqueues y = the mean of each window, in which padding counts as zeros, as PyTorch's AvgPool2d
/// has it by default.
void mean_pool_forward(Context&, const Pooling&, const Tensor& x, const Tensor& y);
/// Enqueues dx = the sum of dy / kernel^2 over the windows that an element is in.
void mean_pool_backward(Context&, const Pooling&, const Tensor& dy, const Tensor& dx);

/// Enqueues y [B, C] = mean over the pixels of x [B, P, C].
void average_pool_forward(Context&, std::int64_t batch, std::int64_t pixels, std::int64_t channels,
                          const Tensor& x, const Tensor& y);
/// Enqueues dx [B, P, C] = dy [B, C] / P.
void average_pool_backward(Context&, std::int64_t batch, std::int64_t pixels, std::int64_t channels,
                           const Tensor& dy, const Tensor& dx);

}  // namespace trireme::ops
