// SPDX-License-Identifier: Apache-2.0
//
// The im2col matrix of a convolution, for the weight's gradient in bfloat16.

#include "im2col.hpp"

#include <cstddef>
#include <cstring>

#include <dnnl.hpp>

namespace trireme::ops::cpu {
namespace {

/// Returns whether oneDNN uses all instructions of a set on this processor.
bool has(dnnl::cpu_isa set) {
  static const auto all = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (all & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
}

}  // namespace

// oneDNN's AMX kernel works on the pixels of an output row, which fill its tiles badly if rows are
// short. Milliseconds of the library's kernel / of im2col and a matrix product; oneDNN 3.2, Xeon
// with AMX, bfloat16, two threads, batch 128:
//   512 -> 512 3x3    4x4     124 / 21.1      128 -> 128 3x3   14x14  20.8 / 29.2
//   256 -> 512 3x3/2  7x7    70.2 / 11.6       64 ->  64 3x3   28x28  16.9 / 54.3
//   256 -> 256 3x3    7x7    39.2 / 18.7      256 -> 512 1x1/2  7x7    9.9 /  1.0
//   128 -> 256 3x3/2 14x14   26.2 / 10.6       64 -> 128 1x1/2 28x28   4.7 /  2.1
// The same with one thread and batch 32:
//   128 -> 128 3x3   10x10   10.9 /  6.1     1024 -> 2048 1x1/2 14x14  212 / 29.5
//   128 -> 128 3x3   12x12   12.9 / 14.1      256 -> 1024 1x1   14x14   31 / 13.4
//
// Its kernel without AMX is slow for few pixels and for strides. There this rule saved 7 % of the
// steps of ResNet-18 (28x28, batch 128) and 1.5 % of ResNet-50's (224x224, batch 16); oneDNN 3.2,
// Zen 4, two threads.
bool prefers_im2col_gradient(const Convolution& c) {
  if (c.dtype != DType::bfloat16) return false;
  if (has(dnnl::cpu_isa::avx512_core_amx)) return c.kernel == 1 || c.out_width() <= 10;
  const std::int64_t pixels = c.out_height() * c.out_width();
  return has(dnnl::cpu_isa::avx512_core_bf16) &&
         (c.kernel == 1 || pixels <= 16 || (c.stride > 1 && pixels <= 196));
}

Linear im2col_layer(const Convolution& c) {
  return {.rows = c.batch * c.out_height() * c.out_width(),
          .in = c.kernel * c.kernel * c.in_channels,
          .out = c.out_channels,
          .dtype = c.dtype};
}

bool is_im2col_layout(const Convolution& c) {
  return c.kernel == 1 && c.stride == 1 && c.padding == 0;
}

void im2col(const Convolution& c, const Tensor& x, const Tensor& columns) {
  const std::int64_t pixel = c.in_channels * size_of(c.dtype), row = c.kernel * c.kernel * pixel;
  const std::int64_t out_height = c.out_height(), out_width = c.out_width(),
                     rows = c.batch * out_height * out_width;
  const auto* const from = static_cast<const std::byte*>(x.data);
  auto* const to = static_cast<std::byte*>(columns.data);
#pragma omp parallel for schedule(static)
  for (std::int64_t number = 0; number < rows; ++number) {
    // Row `number` of the matrix: the pixels under the kernel at one output pixel, zeros in the
    // padding.
    const std::int64_t image = number / (out_height * out_width);
    const std::int64_t top = number / out_width % out_height * c.stride - c.padding.before,
                       left = number % out_width * c.stride - c.padding.before;
    std::byte* place = to + number * row;
    for (std::int64_t i = top; i < top + c.window(); i += c.dilation) {
      for (std::int64_t j = left; j < left + c.window(); j += c.dilation, place += pixel) {
        if (i < 0 || i >= c.height || j < 0 || j >= c.width) {
          std::memset(place, 0, static_cast<std::size_t>(pixel));
        } else {
          std::memcpy(place, from + ((image * c.height + i) * c.width + j) * pixel,
                      static_cast<std::size_t>(pixel));
        }
      }
    }
  }
}

}  // namespace trireme::ops::cpu
