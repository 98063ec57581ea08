#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Maximum over square windows of x [B, H, W, C]; padding counts as minus infinity. On a tie the
/// first element in row-major order has the gradient.
struct MaxPool {
  std::int64_t batch = 0, height = 0, width = 0, channels = 0, kernel = 3, stride = 2, padding = 1;
  DType dtype = DType::float32;
  std::int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  Shape output_shape() const { return {batch, out_height(), out_width(), channels}; }
};
/// `winners`: uint8 of y's shape, the place in its window (row * kernel + column).
void max_pool_forward(Context&, const MaxPool&, const Tensor& x, const Tensor& y,
                      const Tensor& winners);
void max_pool_backward(Context&, const MaxPool&, const Tensor& dy, const Tensor& winners,
                       const Tensor& dx);

/// y [B, C] = mean over the pixels of x [B, P, C].
void average_pool_forward(Context&, std::int64_t batch, std::int64_t pixels, std::int64_t channels,
                          const Tensor& x, const Tensor& y);
void average_pool_backward(Context&, std::int64_t batch, std::int64_t pixels, std::int64_t channels,
                           const Tensor& dy, const Tensor& dx);

}  // namespace trireme::ops
