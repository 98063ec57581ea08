// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::ops::cpu {

// Winograd's algorithm F(4x4, 3x3) in float32: a 3x3 convolution of stride 1 and padding 1 with 36
// multiplications for 4x4 outputs, where the direct form has 144; and its weight's gradient. Lavin
// and Gray, "Fast algorithms for convolutional neural networks", 2016, section 4. winograd.hpp has
// its use as a product.

/// A convolution as the kernel sees it. The gradient of the input is one, too: with the channels
/// exchanged and the filters rotated by half a turn.
struct WinogradShape {
  std::int64_t batch = 0, height = 0, width = 0;   ///< of input and output, at least 1
  std::int64_t in_channels = 0, out_channels = 0;  ///< multiples of winograd_channel_multiple()
  int threads = 1;                                 ///< that share the work
};

/// Returns the number of which the channels must be a multiple: two vector registers of float32.
std::int64_t winograd_channel_multiple();

/// Returns whether the kernel was compiled for processors with AVX-512. Only tests use the other
/// forms, of 4 or 8 lanes.
bool is_winograd_wide();

/// Returns the tiles of 4x4 outputs that cover an image. The last row and column may be partial.
std::int64_t winograd_tiles_per_image(std::int64_t height, std::int64_t width);

/// Returns the size of the transformed weight, in float32 numbers: 36 for each 3x3 filter.
std::int64_t winograd_weight_size(const WinogradShape& shape);

/// Returns the size of the scratch memory of all threads together, in float32 numbers.
std::int64_t winograd_scratch_size(const WinogradShape& shape);

/// The use of a weight [K, 3, 3, C].
enum class WinogradDirection : std::uint8_t {
  forward,        ///< C channels in, K channels out
  backward_data,  ///< K channels in, C channels out, rotated filters
};

/// Writes u = the transformed weight, for `direction`. `w` is the weight [K, 3, 3, C] of the
/// forward convolution, but `shape` has the channels of the direction. The layout of u is
/// [out_channels / M][36][in_channels][M] with M = winograd_channel_multiple().
void transform_winograd_weight(const WinogradShape& shape, WinogradDirection direction,
                               const float* w, float* u);

/// Writes y [B, H, W, out_channels] = the convolution of x [B, H, W, in_channels] with the
/// transformed weight. The bits of an image's result depend neither on the number of threads nor on
/// the other images.
void winograd_convolution(const WinogradShape& shape, const float* x, const float* u,
                          float* scratch, float* y);

/// Returns the size of the scratch memory of the weight's gradient, in float32 numbers.
std::int64_t winograd_gradient_scratch_size(const WinogradShape& shape);

/// Writes dw [out_channels, 3, 3, in_channels] = the gradient of the weight; `dy` [B, H, W,
/// out_channels]. The bits do not depend on the number of threads.
void winograd_weight_gradient(const WinogradShape& shape, const float* x, const float* dy,
                              float* scratch, float* dw);

}  // namespace trireme::ops::cpu
