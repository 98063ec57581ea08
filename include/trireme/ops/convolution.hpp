// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/normalization.hpp"

namespace trireme::ops {

// B batch, H height, W width, C channels in, K channels out, R kernel size

/// Rows and columns of zeros in front of an image and behind it.
struct Padding {
  std::int64_t before = 0, after = 0;
  constexpr Padding(std::int64_t both) : before(both), after(both) {}
  constexpr Padding(std::int64_t in_front, std::int64_t behind) : before(in_front), after(behind) {}
  constexpr std::int64_t sum() const { return before + after; }
  /// Returns one number for both, which is the number on each side if they are equal.
  constexpr std::int64_t code() const {
    return before == after ? before : before + ((after + 1) << 32);
  }
  bool operator==(const Padding&) const = default;
};

/// A square 2-D convolution without groups or bias. Input [B, H, W, C], weight [K, R, R,
/// C] in memory order, output [B, H', W', K].
///
/// The input may have more channels in memory than the weight, all zeros (`padded_channels`).
/// Libraries have fast engines for a multiple of 8 channels in 16-bit types, but images often
/// have fewer. The ops then use a copy of the weight that is padded with zeros, too.
struct Convolution {
  std::int64_t batch = 0, height = 0, width = 0, in_channels = 0, out_channels = 0;
  std::int64_t kernel = 1, stride = 1;
  Padding padding = 0;
  /// Type of input, weight and output: float32, bfloat16 or float16. Sums are float32.
  DType dtype = DType::float32;
  std::int64_t padded_channels = 0;  ///< channels of the input in memory, if more than in_channels
  /// Pixels from one tap of the kernel to the next: 1 if they are neighbors.
  std::int64_t dilation = 1;
  bool is_padded() const { return padded_channels > in_channels; }
  /// Returns the same convolution with a padded weight.
  Convolution with_padded_weight() const {
    Convolution c = *this;
    c.in_channels = padded_channels;
    c.padded_channels = 0;
    return c;
  }
  /// Returns the rows and columns that the kernel reaches.
  std::int64_t window() const { return dilation * (kernel - 1) + 1; }
  std::int64_t out_height() const { return (height + padding.sum() - window()) / stride + 1; }
  std::int64_t out_width() const { return (width + padding.sum() - window()) / stride + 1; }
  Shape input_shape() const {
    return {batch, height, width, is_padded() ? padded_channels : in_channels};
  }
  Shape output_shape() const { return {batch, out_height(), out_width(), out_channels}; }
  Shape weight_shape() const { return {out_channels, kernel, kernel, in_channels}; }
  /// Returns the operations of one pass, 2 for each multiply-add.
  double flops() const {
    return 2.0 * batch * out_height() * out_width() * out_channels * in_channels * kernel * kernel;
  }
  bool operator==(const Convolution&) const = default;
};

/// Returns the batch norm that follows a convolution, with the fields that its statistics depend
/// on.
inline BatchNorm batch_norm_after(const Convolution& c) {
  return {.rows = c.batch * c.out_height() * c.out_width(),
          .channels = c.out_channels,
          .dtype = c.dtype};
}

/// Enqueues y = x (*) w, a cross-correlation with zero padding.
void convolution_forward(Context&, const Convolution&, const Tensor& x, const Weight& w,
                         const Tensor& y);
/// Enqueues convolution_forward and the statistics of y's channels for the batch norm that follows.
/// In 16-bit types a CUDA device may sum them in the convolution's epilogue instead of reading y
/// again (docs/design/gpu.md). The first use of a shape on CUDA times both ways, and the host
/// waits.
void convolution_statistics_forward(Context&, const Convolution&, const Tensor& x, const Weight& w,
                                    const Tensor& y, const BatchStatistics&);
/// Enqueues dx = gradient of the input [+ addend]. `addend` has the type and shape of dx and is
/// other memory; undefined: none. Not for padded inputs, which have no gradient.
void convolution_backward_data(Context&, const Convolution&, const Tensor& dy, const Weight& w,
                               const Tensor& addend, const Tensor& dx);
/// Enqueues dw (float32, [K, R, R, C]) = or += gradient of the weight.
void convolution_backward_weight(Context&, const Convolution&, const Tensor& x, const Tensor& dy,
                                 const Tensor& dw, Write);

}  // namespace trireme::ops
