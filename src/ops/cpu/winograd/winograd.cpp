// SPDX-License-Identifier: Apache-2.0
//
// Convolutions by Winograd's algorithm: which ones, and their products. Called by convolution.cpp.

#include "winograd.hpp"

#include <algorithm>

#include <omp.h>

#include "trireme/base/check.hpp"
#include "winograd_kernel.hpp"

namespace trireme::ops::cpu {
namespace {

using Format = dnnl::memory::format_tag;
using Memory = dnnl::memory;

float* floats(void* data) { return static_cast<float*>(data); }

Memory::desc plain_weight(const Convolution& c) {
  return {
      {c.out_channels, c.in_channels, c.kernel, c.kernel}, Memory::data_type::f32, Format::ohwi};
}

WinogradShape winograd_shape(const Convolution& c, WinogradDirection direction) {
  const bool forward = direction == WinogradDirection::forward;
  return {.batch = c.batch,
          .height = c.height,
          .width = c.width,
          .in_channels = forward ? c.in_channels : c.out_channels,
          .out_channels = forward ? c.out_channels : c.in_channels,
          .threads = omp_get_max_threads()};
}

/// Returns the weight's operand, which is converted by the transform of the filters.
Operand winograd_weight(Library& library, const Convolution& c, const WinogradShape& shape,
                        WinogradDirection direction) {
  // The first extent tells the directions apart, whose transformed weights differ.
  const std::int64_t size = winograd_weight_size(shape);
  const bool forward = direction == WinogradDirection::forward;
  const Memory::dims extents = forward ? Memory::dims{1, size} : Memory::dims{size, 1};
  return library.input({plain_weight(c), Memory::desc(extents, Memory::data_type::f32, Format::ab)},
                       Primitive([=](const Primitive::Addresses& at) {
                         transform_winograd_weight(shape, direction, floats(at[0]), floats(at[1]));
                       }));
}

/// Returns the formats of an image in float32 and plain order, which the kernels use in place.
FormatPair plain_image(const Convolution& c, std::int64_t channels) {
  const Memory::desc plain({c.batch, channels, c.height, c.width}, Memory::data_type::f32,
                           Format::nhwc);
  return {plain, plain};
}

Product make_winograd_product(Library& library, const Convolution& c, WinogradDirection direction) {
  TRIREME_EXPECT(supports_winograd(c) && c.batch > 0);
  const WinogradShape shape = winograd_shape(c, direction);
  return Product{Primitive([shape](const Primitive::Addresses& at) {
                   winograd_convolution(shape, floats(at[0]), floats(at[1]), floats(at[3]),
                                        floats(at[2]));
                 }),
                 library.input(plain_image(c, shape.in_channels)),
                 winograd_weight(library, c, shape, direction),
                 library.output(plain_image(c, shape.out_channels)),
                 {},
                 winograd_scratch_size(shape) * std::int64_t{sizeof(float)}};
}

}  // namespace

bool supports_winograd(const Convolution& c) {
  const std::int64_t multiple = winograd_channel_multiple();
  return c.dtype == DType::float32 && c.kernel == 3 && c.stride == 1 && c.padding == 1 &&
         c.dilation == 1 && c.in_channels % multiple == 0 && c.out_channels % multiple == 0;
}

// One rule for the three products, measured with 2 threads on an EPYC Zen 4
// (docs/design/cpu_kernels.md has the times). Its conditions:
//
// 1. Tiles fit the image. Small images lose tiles that reach beyond them, and oneDNN skips taps in
//    the padding. At 5x5, which saves a factor of 1.2, both took 13 ms (256 -> 256, batch 128).
// 2. There are enough tiles. Once an update or more often, forward and input gradient transform the
//    weight: 3 ms for 512 -> 512, which about 28 tiles save. The weight's gradient has an error of
//    about 4e-7 of the result for any batch, while that of direct sums is smaller for few tiles:
//    the ratio is 2.5 to 3.8 with 64 to 72 tiles and 4 to 6 with 8.
// 3. Each thread has enough tiles. Only tiles are split over threads, and every strip of them reads
//    the whole transformed weight. This number follows from that and was not measured.
bool prefers_winograd(const Convolution& c) {
  if (!supports_winograd(c) || !is_winograd_wide()) return false;
  constexpr double smallest_saving = 1.6;
  constexpr std::int64_t fewest_tiles = 64, fewest_tiles_of_a_thread = 8;
  const std::int64_t tiles = winograd_tiles_per_image(c.height, c.width);
  // Multiplications for each pair of channels.
  const auto direct = static_cast<double>((3 * c.height - 2) * (3 * c.width - 2)),
             winograd = 36.0 * static_cast<double>(tiles);
  return direct >= smallest_saving * winograd &&
         c.batch * tiles >=
             std::max(fewest_tiles, fewest_tiles_of_a_thread * omp_get_max_threads());
}

Product make_winograd_forward(Library& library, const Convolution& convolution) {
  return make_winograd_product(library, convolution, WinogradDirection::forward);
}

Product make_winograd_backward_data(Library& library, const Convolution& convolution) {
  return make_winograd_product(library, convolution, WinogradDirection::backward_data);
}

Product make_winograd_backward_weight(Library& library, const Convolution& c) {
  TRIREME_EXPECT(supports_winograd(c) && c.batch > 0);
  const WinogradShape shape = winograd_shape(c, WinogradDirection::forward);
  const Memory::desc gradient = plain_weight(c);
  return Product{Primitive([shape](const Primitive::Addresses& at) {
                   winograd_weight_gradient(shape, floats(at[0]), floats(at[1]), floats(at[3]),
                                            floats(at[2]));
                 }),
                 library.input(plain_image(c, shape.in_channels)),
                 library.input(plain_image(c, shape.out_channels)),
                 library.output({gradient, gradient}),
                 make_reorder(library.engine(), gradient, gradient, true),
                 winograd_gradient_scratch_size(shape) * std::int64_t{sizeof(float)}};
}

}  // namespace trireme::ops::cpu
