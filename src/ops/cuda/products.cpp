// SPDX-License-Identifier: Apache-2.0
//
// The CUDA form of products: epilogues of cuBLASLt and cuDNN where they exist, separate kernels
// where they do not.
//
// Every function takes its workspace first, so that meta measures the same memory. Where an op has
// two ways (fused or kernel by kernel, convolution or product), run_variant(bool) runs either, and
// the library says which one is faster. The op itself has been counted by its caller.

#include "products.hpp"

#include <functional>

#include "ops/dispatch/backend.hpp"
#include "ops/dispatch/counting_pause.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/cast_tensors.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::ops::cuda {
namespace {

using Kind = Problem::Kind;

/// Enqueues a product. Returns false, with nothing done, if the library has no such epilogue. On
/// meta it returns true.
bool multiply(Context& context, Kind kind, Epilogue epilogue, const Linear& l,
              const ProductTensors& tensors, Write write = Write::assign) {
  const ArenaScope scope(context.workspace());
  const Tensor workspace = context.workspace().allocate(DType::uint8, {workspace_bytes});
  return context.meta() ||
         context.backend().cuda->multiply(kind, epilogue, l, tensors, write, workspace);
}

/// Returns the bias in another type: cuBLASLt needs that of the result, kernels need float32.
Tensor convert_bias(Context& context, const Tensor& bias, DType dtype) {
  if (!bias.defined() || bias.dtype == dtype) return bias;
  const Tensor addend = context.workspace().allocate(dtype, bias.shape);
  cast(context, bias, addend);
  return addend;
}

/// Enqueues a convolution with workspace. On meta it only takes the workspace.
void convolve(Context& context, Kind kind, const Convolution& c, const Tensor& x, const Tensor& w,
              const Tensor& y) {
  const ArenaScope scope(context.workspace());
  const Tensor workspace = context.workspace().allocate(DType::uint8, {workspace_bytes});
  if (!context.meta()) context.backend().cuda->convolve(kind, c, x, w, y, workspace);
}

/// Returns whether the library's GELU may be used. It is the tanh form, but its accuracy is not
/// documented. The rounding of bfloat16 results hides the difference.
bool may_use_library_gelu(const Linear& l) { return l.dtype == DType::bfloat16; }

/// Returns the workspace that each variant of an op takes, as scratch memory between two runs.
Tensor scratch_of(Context& context) {
  const ArenaScope scope(context.workspace());
  return context.workspace().allocate(DType::uint8, {workspace_bytes});
}

/// Runs a product with an epilogue, or the product and a kernel one after the other: the faster of
/// both, in deterministic runs the first. `may_fuse`: the first is allowed. `may_repeat`: both may
/// be run several times. On meta takes the memory of both. run_variant(fused) returns false, with
/// nothing done, if the library has no such epilogue.
template <class RunVariant>
void run_faster(Context& context, Kind kind, Epilogue epilogue, const Linear& l, bool may_fuse,
                bool may_repeat, const RunVariant& run_variant) {
  may_fuse = may_fuse && context.fusions();
  if (may_fuse && context.meta()) run_variant(true);
  if (may_fuse && !context.meta() &&
      context.backend().cuda->is_faster_with_epilogue(
          kind, epilogue, l, {may_repeat, scratch_of(context)}, std::ref(run_variant)) &&
      run_variant(true))
    return;
  run_variant(false);
}

/// Returns the matrix product that a 1x1 convolution of stride 1 is.
Linear product_of(const Convolution& c) {
  return {.rows = c.batch * c.height * c.width,
          .in = c.in_channels,
          .out = c.out_channels,
          .order = MatrixOrder::out_in,
          .dtype = c.dtype};
}

/// Returns whether a convolution, run_variant(false), is faster as the product that it is,
/// run_variant(true). `adds`: both add a tensor to their result. `may_repeat`: both may be run
/// several times. On meta takes the memory of the product and returns false.
template <class RunVariant>
bool is_faster_as_product(Context& context, Kind kind, const Convolution& c, bool adds,
                          bool may_repeat, const RunVariant& run_variant) {
  const bool is_product =
      context.fusions() && !c.is_padded() && c.kernel == 1 && c.stride == 1 && c.padding == 0;
  if (is_product && context.meta()) run_variant(true);
  return is_product && !context.meta() &&
         context.backend().cuda->is_faster_as_product(
             kind, c, adds, {may_repeat, scratch_of(context)}, std::ref(run_variant));
}

/// Makes a convolution of kind `kind`, as the product of kind `product_kind` where that is faster.
/// A product adds t.added itself, before its only rounding. Only gradients of inputs have it.
void convolve_or_multiply(Context& context, Kind kind, Kind product_kind, const Convolution& c,
                          const ProductTensors& t) {
  const CountingPause pause(context);
  const auto run_variant = [&](bool product) {
    if (product) return multiply(context, product_kind, Epilogue::none, product_of(c), t);
    convolve(context, kind, c, t.x, t.w, t.y);
    if (t.added.defined()) add(context, t.added, t.x);
    return true;
  };
  run_variant(is_faster_as_product(context, kind, c, t.added.defined(), true, run_variant));
}

}  // namespace

void linear_forward(Context& context, const Linear& l, const Tensor& x, const Tensor& w,
                    const Tensor& bias, const Tensor& residual, const Tensor& y) {
  // One workspace for the bias; the residual is added by the product itself.
  const CountingPause pause(context);
  const ArenaScope scope(context.workspace());
  const bool may_fuse = context.fusions();
  if (may_fuse && bias.defined() &&
      multiply(context, Kind::linear_forward, Epilogue::bias, l,
               {.x = x,
                .w = w,
                .y = y,
                .vector = convert_bias(context, bias, y.dtype),
                .added = residual}))
    return;
  multiply(context, Kind::linear_forward, Epilogue::none, l,
           {.x = x, .w = w, .y = y, .added = may_fuse ? residual : Tensor{}});
  if (!may_fuse && residual.defined()) add(context, residual, y);
  if (bias.defined()) add_bias(context, convert_bias(context, bias, DType::float32), y, y);
}

void linear_gelu_forward(Context& context, const Linear& l, const Tensor& x, const Tensor& w,
                         const Tensor& bias, const Tensor& z, const Tensor& y) {
  const CountingPause pause(context);
  const auto run_variant = [&](bool fused) {
    if (!fused) {
      linear_forward(context, l, x, w, bias, {}, z);
      gelu_forward(context, z, y);
      return true;
    }
    const ArenaScope scope(context.workspace());
    return multiply(
        context, Kind::linear_forward, Epilogue::gelu, l,
        {.x = x, .w = w, .y = y, .vector = convert_bias(context, bias, y.dtype), .matrix = z});
  };
  run_faster(context, Kind::linear_forward, Epilogue::gelu, l, may_use_library_gelu(l), true,
             run_variant);
}

void linear_backward_data(Context& context, const Linear& l, const Tensor& dy, const Tensor& w,
                          const Tensor& dx) {
  multiply(context, Kind::linear_backward_data, Epilogue::none, l, {.x = dx, .w = w, .y = dy});
}

void linear_backward_data_gelu(Context& context, const Linear& l, const Tensor& dy, const Tensor& w,
                               const Tensor& z, const Tensor& dz) {
  const CountingPause pause(context);
  const auto run_variant = [&](bool fused) {
    if (fused)
      return multiply(context, Kind::linear_backward_data, Epilogue::gelu_gradient, l,
                      {.x = dz, .w = w, .y = dy, .matrix = z});
    linear_backward_data(context, l, dy, w, dz);
    gelu_backward(context, z, dz, dz);
    return true;
  };
  run_faster(context, Kind::linear_backward_data, Epilogue::gelu_gradient, l,
             may_use_library_gelu(l), true, run_variant);
}

/// The order in which the library's epilogue sums a bias's gradient is not documented, so
/// deterministic runs use the kernel.
void linear_backward_weight(Context& context, const Linear& l, const Tensor& x, const Tensor& dy,
                            const Tensor& dw, const Tensor& dbias, Write write) {
  const CountingPause pause(context);
  const auto run_variant = [&](bool fused) {
    if (!fused) {
      multiply(context, Kind::linear_backward_weight, Epilogue::none, l, {.x = x, .w = dw, .y = dy},
               write);
      if (dbias.defined()) column_sums(context, dy, dbias, write);
      return true;
    }
    const ArenaScope scope(context.workspace());
    const Tensor sums =
        write == Write::assign ? dbias : context.workspace().allocate(DType::float32, dbias.shape);
    if (!multiply(context, Kind::linear_backward_weight, Epilogue::column_sums, l,
                  {.x = x, .w = dw, .y = dy, .vector = sums}, write))
      return false;
    if (write == Write::add) add(context, sums, dbias);
    return true;
  };
  // A trial would add the gradient several times.
  run_faster(context, Kind::linear_backward_weight, Epilogue::column_sums, l,
             dbias.defined() && !context.deterministic(), write == Write::assign, run_variant);
}

void convolution_forward(Context& context, const Convolution& c, const Tensor& x, const Tensor& w,
                         const Tensor& y) {
  convolve_or_multiply(context, Kind::convolution_forward, Kind::linear_forward, c,
                       {.x = x, .w = w, .y = y});
}

/// Returns whether the convolution may sum the channels. Not in float32, where sums about zero may
/// lose digits; not in deterministic runs, because the order of the sums is not documented. Both
/// vectors of sums must begin at a multiple of 16 bytes.
bool may_sum_channels(const Context& context, const Convolution& c) {
  return context.fusions() && c.dtype != DType::float32 && !context.deterministic() &&
         c.out_channels % 4 == 0;
}

/// Returns the memory for the sums of a convolution's channels [2, channels], which holds 0.
Tensor cleared_channel_sums(Context& context, std::int64_t channels) {
  Tensor& sums = context.backend().channel_sums;
  if (!sums.defined() || sums.elements() < 2 * channels) {
    sums = context.library().allocate(DType::float32, {2 * channels});
    fill(context, sums, 0);
  }
  return sums.rows(0, 2 * channels).reshaped({2, channels});
}

void convolution_statistics_forward(Context& context, const Convolution& c, const Tensor& x,
                                    const Tensor& w, const Tensor& y,
                                    const BatchStatistics& statistics) {
  const CountingPause pause(context);
  // Taken before the choice, so that every rank, start and plan takes the same.
  const Tensor sums =
      may_sum_channels(context, c) ? cleared_channel_sums(context, c.out_channels) : Tensor{};
  // Runs the fused or the plain variant. Returns false if the fused one cannot be run.
  const auto run_variant = [&](bool fused) {
    if (!fused) {
      convolution_forward(context, c, x, w, y);
      batch_norm_statistics(context, batch_norm_after(c), y, statistics);
      return true;
    }
    const ArenaScope scope(context.workspace());
    const Tensor workspace = context.workspace().allocate(DType::uint8, {workspace_bytes});
    // cuDNN does not document if an engine adds to the old values, so they are 0. The kernel of the
    // statistics sets them to 0 again.
    const bool done =
        context.meta() || context.backend().cuda->convolve_with_sums(c, x, w, y, sums, workspace);
    if (done)
      batch_norm_statistics_of_sums(context, batch_norm_after(c), y, sums, statistics);
    else
      fill(context, sums, 0);
    return done;
  };
  if (may_sum_channels(context, c)) {
    if (context.meta()) {
      run_variant(true);  // meta takes the memory of both variants
    } else if (context.backend().cuda->is_faster_with_sums(c, scratch_of(context),
                                                           std::ref(run_variant)) &&
               run_variant(true)) {
      return;
    }
  }
  run_variant(false);
}

void convolution_backward_data(Context& context, const Convolution& c, const Tensor& dy,
                               const Tensor& w, const Tensor& addend, const Tensor& dx) {
  convolve_or_multiply(context, Kind::convolution_backward_data, Kind::linear_backward_data, c,
                       {.x = dx, .w = w, .y = dy, .added = addend});
}

/// cuDNN's graphs assign and do not add, and they write in the type of the operands, with padded
/// channels. In all other cases the gradient is made in other memory first: in that of
/// NarrowGradients, which converts it later, or in the workspace. A product adds, and writes
/// float32 itself.
void convolution_backward_weight(Context& context, const Convolution& c, const Tensor& x,
                                 const Tensor& dy, const Tensor& dw, Write write) {
  const CountingPause pause(context);
  const ArenaScope scope(context.workspace());
  const Convolution padded = c.is_padded() ? c.with_padded_weight() : c;
  const bool direct = c.dtype == DType::float32 && write == Write::assign && !c.is_padded();
  NarrowGradients* const later =
      c.dtype != DType::float32 && context.fusions() ? context.narrow_gradients() : nullptr;
  // Taken before the choice, so that every rank, start and plan takes the same.
  const Tensor gradient = direct ? dw
                          : later != nullptr
                              ? later->allocate(c.dtype, padded.weight_shape())
                              : context.workspace().allocate(c.dtype, padded.weight_shape());
  const TensorCast cast{.x = gradient, .y = dw, .write = write};
  const auto convolve_to_gradient = [&] {
    convolve(context, Kind::convolution_backward_weight, padded, x, gradient, dy);
  };
  const auto run_variant = [&](bool product) {
    if (product)
      return multiply(context, Kind::linear_backward_weight, Epilogue::none, product_of(c),
                      {.x = x, .w = dw, .y = dy}, write);
    convolve_to_gradient();
    if (!direct) cast_tensors(context, {&cast, 1});
    return true;
  };
  // A trial would add the gradient several times. It includes the cast, which a product saves.
  const bool product = is_faster_as_product(context, Kind::convolution_backward_weight, c, false,
                                            write == Write::assign, run_variant);
  if (product || later == nullptr) {
    run_variant(product);
  } else {
    convolve_to_gradient();
    later->cast_later(cast);
  }
}

}  // namespace trireme::ops::cuda
