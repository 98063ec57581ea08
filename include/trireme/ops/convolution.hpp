#pragma once

#include "trireme/ops/normalization.hpp"

namespace trireme::ops {

// B batch, H height, W width, C channels in, K channels out, R kernel size

/// A square 2-D convolution without groups, dilation or bias. Input [B, H, W, C], weight in memory
/// [K, R, R, C], output [B, H', W', K].
struct Convolution {
  std::int64_t batch = 0, height = 0, width = 0, in_channels = 0, out_channels = 0;
  std::int64_t kernel = 1, stride = 1, padding = 0;
  DType dtype = DType::float32;  ///< of input, weight and output: float32, bfloat16 or float16;
                                 ///< sums are float32

  std::int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  Shape input_shape() const { return {batch, height, width, in_channels}; }
  Shape output_shape() const { return {batch, out_height(), out_width(), out_channels}; }
  Shape weight_shape() const { return {out_channels, kernel, kernel, in_channels}; }
  double flops() const {
    return 2.0 * batch * out_height() * out_width() * out_channels * in_channels * kernel * kernel;
  }
  bool operator==(const Convolution&) const = default;
};

/// The batch norm behind a convolution, as far as its statistics depend on it.
inline BatchNorm batch_norm_after(const Convolution& c) {
  return {.rows = c.batch * c.out_height() * c.out_width(),
          .channels = c.out_channels,
          .dtype = c.dtype};
}

/// y = x (*) w.
void convolution_forward(Context&, const Convolution&, const Tensor& x, const Weight& w,
                         const Tensor& y);
/// The same, and the statistics of y's channels for the batch norm behind it. In 16 bit types a
/// CUDA device may add them up in the convolution's epilogue, in place of reading y (docs/gpu.md);
/// everywhere else it is convolution_forward and batch_norm_statistics.
void convolution_statistics_forward(Context&, const Convolution&, const Tensor& x, const Weight& w,
                                    const Tensor& y, const BatchStatistics&);
/// dx = gradient of the input.
void convolution_backward_data(Context&, const Convolution&, const Tensor& dy, const Weight& w,
                               const Tensor& dx);
/// dw (float32, [K, R, R, C]) = or += gradient of the weight.
void convolution_backward_weight(Context&, const Convolution&, const Tensor& x, const Tensor& dy,
                                 const Tensor& dw, Write);

}  // namespace trireme::ops
