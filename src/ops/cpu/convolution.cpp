// SPDX-License-Identifier: Apache-2.0
//
// The oneDNN form of convolutions: makes the three products of a problem at its first use. Called
// by ops/convolution.cpp.
//
// oneDNN lists extents as batch, channels, height, width for every order in memory: our images are
// its `nhwc`, our weights its `ohwi`. Activations keep their plain order, which was measured as
// fast as blocked orders (below). Weights are converted to the format that the primitive prefers.
// Most 3x3 convolutions of stride 1 in float32 use Winograd's algorithm instead (winograd.cpp).

#include "convolution.hpp"

#include <string_view>

#include "ops/cpu/winograd/winograd.hpp"

namespace trireme::ops::cpu {
namespace {

using Format = dnnl::memory::format_tag;
using Memory = dnnl::memory;

/// oneDNN's descriptions of a convolution's tensors.
struct Description {
  Memory::desc source, weight, destination;  ///< plain
  /// `any_`: the library chooses the format. Gradients are float32.
  Memory::desc any_weight, gradient, any_gradient;
  /// Steps, pixels that are skipped between two taps, and zeros on both sides.
  Memory::dims stride, skipped, before, after;
  dnnl::primitive_attr attributes;

  explicit Description(const Convolution& c)
      : stride{c.stride, c.stride},
        skipped{c.dilation - 1, c.dilation - 1},
        before{c.padding.before, c.padding.before},
        after{c.padding.after, c.padding.after} {
    const auto type = library_type(c.dtype);
    const Memory::dims weight_dims{c.out_channels, c.in_channels, c.kernel, c.kernel};
    source = Memory::desc({c.batch, c.in_channels, c.height, c.width}, type, Format::nhwc);
    destination =
        Memory::desc({c.batch, c.out_channels, c.out_height(), c.out_width()}, type, Format::nhwc);
    weight = Memory::desc(weight_dims, type, Format::ohwi);
    any_weight = Memory::desc(weight_dims, type, Format::any);
    gradient = Memory::desc(weight_dims, Memory::data_type::f32, Format::ohwi);
    any_gradient = Memory::desc(weight_dims, Memory::data_type::f32, Format::any);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }

  dnnl::convolution_forward::primitive_desc forward(const dnnl::engine& engine) const {
    return {engine,
            dnnl::prop_kind::forward_training,
            dnnl::algorithm::convolution_direct,
            source,
            any_weight,
            destination,
            stride,
            skipped,
            before,
            after,
            attributes};
  }
};

// oneDNN lists its batched-GEMM kernels ("brg...") first. Its direct kernels are faster where they
// skip many taps in the padding (small images) and where a stride skips most of the input. GFLOP/s
// of batched-GEMM / direct in plain order (and direct with blocked activations); oneDNN 3.2,
// AVX-512 with bf16, 2 cores, batch 128:
//   pass      shape                  bfloat16            float32
//   forward   512 -> 512 3x3 4x4     728 / 1292 (1140)   468 / 510 (470)
//   forward   256 -> 512 3x3/2 7x7   670 / 1199 (1037)   441 / 581 (596)
//   forward   256 -> 256 3x3 7x7     950 / 1059 (997)    529 / 487 (468)
//   forward   128 -> 256 3x3/2 14x14 801 / 884 (958)     451 / 333 (385)
//   forward   128 -> 128 3x3 14x14   957 / 912 (947)     477 / 449 (442)
//   forward   128 -> 256 1x1/2 14x14 571 / 774 (707)     256 / 351 (383)
//   backward  512 -> 512 3x3 4x4     710 / 1174 (1104)   454 / 395 (550)
//   backward  256 -> 256 3x3 7x7     903 / 770 (752)     524 / 481 (457)
//   backward  128 -> 256 1x1/2 14x14 222 / 591 (698)     141 / 258 (355)
bool prefers_direct_forward(const Convolution& c) {
  const std::int64_t few_pixels = c.dtype == DType::bfloat16 ? 49 : 16;
  return (c.kernel == 1 && c.stride > 1) || c.out_height() * c.out_width() <= few_pixels;
}

/// Returns whether the direct kernel is preferred for the gradient of the input.
bool prefers_direct_backward_data(const Convolution& c) {
  return (c.kernel == 1 && c.stride > 1) ||
         (c.dtype == DType::bfloat16 && c.height * c.width <= 16);
}

/// Returns whether an implementation is a direct kernel; only those names begin with "jit".
template <class PrimitiveDesc>
bool is_direct(const PrimitiveDesc& desc) {
  return std::string_view(desc.impl_info_str()).starts_with("jit");
}

/// Returns the first direct implementation if `direct` is set and there is one, else the library's
/// first choice.
template <class Make>
auto choose_implementation(const Make& make, bool direct) {
  auto desc = make();
  if (!direct) return desc;
  for (bool more = true; more; more = desc.next_impl()) {
    if (is_direct(desc)) return desc;
  }
  return make();
}

bool uses_winograd(const Library& library, const Convolution& convolution) {
  return library.fusions() && prefers_winograd(convolution);
}

std::int64_t scratchpad_bytes(const dnnl::primitive_desc_base& desc) {
  return static_cast<std::int64_t>(desc.scratchpad_desc().get_size());
}

}  // namespace

Product& convolution_forward(Library& library, const Convolution& requested) {
  const Convolution convolution = with_arithmetic_type(requested);
  return library.product(
      problem_of(Problem::Kind::convolution_forward, convolution), [&](Library& lib) {
        if (uses_winograd(lib, convolution)) return make_winograd_forward(lib, convolution);
        const Description d(convolution);
        const auto desc = choose_implementation([&] { return d.forward(lib.engine()); },
                                                prefers_direct_forward(convolution));
        return Product{Primitive(lib.engine(), dnnl::convolution_forward(desc),
                                 {{DNNL_ARG_SRC, desc.src_desc()},
                                  {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                  {DNNL_ARG_DST, desc.dst_desc()},
                                  {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}),
                       lib.input({d.source, desc.src_desc()}),
                       lib.input({d.weight, desc.weights_desc()}),
                       lib.output({d.destination, desc.dst_desc()}),
                       {},
                       scratchpad_bytes(desc)};
      });
}

Product& convolution_backward_data(Library& library, const Convolution& requested) {
  const Convolution convolution = with_arithmetic_type(requested);
  return library.product(
      problem_of(Problem::Kind::convolution_backward_data, convolution), [&](Library& lib) {
        if (uses_winograd(lib, convolution)) return make_winograd_backward_data(lib, convolution);
        const Description d(convolution);
        const auto hint = d.forward(lib.engine());
        const auto make = [&] {
          return dnnl::convolution_backward_data::primitive_desc(
              lib.engine(), dnnl::algorithm::convolution_direct, d.source, d.any_weight,
              d.destination, d.stride, d.skipped, d.before, d.after, hint, d.attributes);
        };
        const auto desc = choose_implementation(make, prefers_direct_backward_data(convolution));
        return Product{Primitive(lib.engine(), dnnl::convolution_backward_data(desc),
                                 {{DNNL_ARG_DIFF_DST, desc.diff_dst_desc()},
                                  {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                  {DNNL_ARG_DIFF_SRC, desc.diff_src_desc()},
                                  {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}),
                       lib.input({d.destination, desc.diff_dst_desc()}),
                       lib.input({d.weight, desc.weights_desc()}),
                       lib.output({d.source, desc.diff_src_desc()}),
                       {},
                       scratchpad_bytes(desc)};
      });
}

Product& convolution_backward_weight(Library& library, const Convolution& requested) {
  const Convolution convolution = with_arithmetic_type(requested);
  return library.product(
      problem_of(Problem::Kind::convolution_backward_weight, convolution), [&](Library& lib) {
        if (uses_winograd(lib, convolution)) return make_winograd_backward_weight(lib, convolution);
        const Description d(convolution);
        const dnnl::convolution_backward_weights::primitive_desc desc(
            lib.engine(), dnnl::algorithm::convolution_direct, d.source, d.any_gradient,
            d.destination, d.stride, d.skipped, d.before, d.after, d.forward(lib.engine()),
            d.attributes);
        // If it has to write the plain order itself, oneDNN falls back to its reference code, which
        // is 1000 times slower. So the gradient is reordered afterwards.
        return Product{Primitive(lib.engine(), dnnl::convolution_backward_weights(desc),
                                 {{DNNL_ARG_SRC, desc.src_desc()},
                                  {DNNL_ARG_DIFF_DST, desc.diff_dst_desc()},
                                  {DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc()},
                                  {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}),
                       lib.input({d.source, desc.src_desc()}),
                       lib.input({d.destination, desc.diff_dst_desc()}),
                       lib.output({d.gradient, desc.diff_weights_desc()}),
                       make_reorder(lib.engine(), desc.diff_weights_desc(), d.gradient, true),
                       scratchpad_bytes(desc)};
      });
}

}  // namespace trireme::ops::cpu
