// Convolutions by Winograd's algorithm: which ones, and their products. Called by convolution.cpp.

#include "winograd.hpp"

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
  TRIREME_EXPECT(supports_winograd(c));
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
         c.in_channels % multiple == 0 && c.out_channels % multiple == 0;
}

// Milliseconds of oneDNN's kernel / of Winograd's algorithm; oneDNN 3.2, EPYC Zen 4, two threads,
// batch 128 (56x56: 16). Small images lose tiles that reach beyond them, and oneDNN skips taps in
// the padding.
//   shape             forward        weight gradient
//   64 -> 64 28x28    32.4 / 14.1    34.9 / 16.0
//   128 -> 128 14x14  31.0 / 14.5    32.9 / 16.1
//   256 -> 256 7x7    27.5 / 13.3    30.8 / 15.9
//   512 -> 512 4x4    32.2 / 14.2    43.0 / 19.7
//   64 -> 64 56x56    16.2 /  7.1    18.7 /  8.1
//   128 -> 128 28x28   128 / 45.1     140 / 52.7
//   256 -> 256 14x14   120 / 50.9     133 / 69.2
//   512 -> 512 7x7     110 / 53.1     130 / 66.5
//   256 -> 256 9x9    47.6 / 35.1
//   256 -> 256 6x6    19.6 / 13.4
//   256 -> 256 5x5    13.1 / 13.0 (not preferred)
//   32 -> 32 16x16     2.8 /  1.7
// Forward wins with one image, too, except 512 -> 512 4x4: 0.52 / 0.95.
bool prefers_winograd(const Convolution& c) {
  if (!supports_winograd(c) || !is_winograd_wide()) return false;
  constexpr double smallest_saving = 1.6;
  // Multiplications for each pair of channels.
  const auto direct = static_cast<double>((3 * c.height - 2) * (3 * c.width - 2)),
             winograd = 36.0 * static_cast<double>(winograd_tiles_per_image(c.height, c.width));
  return direct >= smallest_saving * winograd;
}

// The rounding error of the transforms is about 4e-7 of the result, whatever the batch; that of
// the direct sums grows with it. With 64 tiles the ratio is about 3, with 8 tiles 5.
bool prefers_winograd_gradient(const Convolution& c) {
  constexpr std::int64_t fewest_tiles = 64;
  return prefers_winograd(c) &&
         c.batch * winograd_tiles_per_image(c.height, c.width) >= fewest_tiles;
}

Product make_winograd_forward(Library& library, const Convolution& convolution) {
  return make_winograd_product(library, convolution, WinogradDirection::forward);
}

Product make_winograd_backward_data(Library& library, const Convolution& convolution) {
  return make_winograd_product(library, convolution, WinogradDirection::backward_data);
}

Product make_winograd_backward_weight(Library& library, const Convolution& c) {
  TRIREME_EXPECT(supports_winograd(c));
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
