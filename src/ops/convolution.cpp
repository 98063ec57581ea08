// SPDX-License-Identifier: Apache-2.0
//
// Convolutions: checks shapes, counts work, and dispatches to oneDNN (cpu/) or to cuDNN
// (cuda/products.hpp). Called by the model's layers.

#include "trireme/ops/convolution.hpp"

#include "cpu/convolution.hpp"
#include "cpu/im2col.hpp"
#include "cpu/launch.hpp"
#include "cpu/linear.hpp"
#include "cuda/products.hpp"
#include "ops/dispatch/counting_pause.hpp"
#include "ops/dispatch/operand.hpp"
#include "trireme/ops/element_type.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::ops {
namespace {

/// Counts the products of an op, with the shape of its matrix product on the im2col matrix.
void count(Context& context, const Op& op, const Convolution& c, double bytes) {
  const std::int64_t pixels = c.batch * c.out_height() * c.out_width(),
                     patch = c.in_channels * c.kernel * c.kernel;
  OpWork work{.flops = c.flops(), .bytes = bytes, .products = 1, .type = element_type(c.dtype)};
  if (op.pass == ProductPass::forward)
    work.m = pixels, work.n = c.out_channels, work.k = patch;
  else if (op.pass == ProductPass::backward_data)
    work.m = pixels, work.n = patch, work.k = c.out_channels;
  else
    work.m = c.out_channels, work.n = patch, work.k = pixels;
  context.count(op, work);
}

/// Computes the weight's gradient as a matrix product on the im2col matrix of x, which is in the
/// workspace unless x already has its layout.
void backward_weight_by_im2col(Context& context, const Convolution& c, const Tensor& x,
                               const Tensor& dy, const Tensor& dw, Write write) {
  const Linear layer = cpu::im2col_layer(c);
  const ArenaScope scope(context.workspace());
  Tensor columns = x;
  if (!cpu::is_im2col_layout(c)) {
    columns = context.workspace().allocate(c.dtype, {layer.rows, layer.in});
    if (!context.meta()) cpu::launch_on_host(context.stream(), [=] { cpu::im2col(c, x, columns); });
  }
  cpu::run(context, cpu::linear_backward_weight(cpu::library_of(context), layer, write),
           {dy, columns, dw, {}, false});
}

/// Returns a copy of the weight in the workspace, padded with zeros to the channels of the input.
Tensor pad_weight(Context& context, const Convolution& c, const Tensor& w) {
  const Tensor padded =
      context.workspace().allocate(c.dtype, c.with_padded_weight().weight_shape());
  change_channels(context, w, padded, Write::assign);
  return padded;
}

}  // namespace

void convolution_forward(Context& context, const Convolution& c, const Tensor& x, const Weight& w,
                         const Tensor& y) {
  TRIREME_EXPECT(fits(context, x, c.input_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, w.value, c.weight_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, y, c.output_shape(), c.dtype));
  count(context, "convolution_forward", c, bytes_of({&x, &w.value, &y}));
  const ArenaScope scope(context.workspace());
  if (c.is_padded()) {
    const CountingPause pause(context);
    return convolution_forward(context, c.with_padded_weight(), x,
                               {.value = pad_weight(context, c, w.value)}, y);
  }
  if (context.target() == DeviceKind::cuda)
    return cuda::convolution_forward(context, c, x, w.value, y);
  const cpu::Product& product = cpu::convolution_forward(cpu::library_of(context), c);
  cpu::run(
      context, product,
      {x, cpu::prepared_weight(context, product.second, w, &PreparedWeight::forward), y, {}, true});
}

void convolution_statistics_forward(Context& context, const Convolution& c, const Tensor& x,
                                    const Weight& w, const Tensor& y,
                                    const BatchStatistics& statistics) {
  if (context.target() != DeviceKind::cuda) {
    convolution_forward(context, c, x, w, y);
    return batch_norm_statistics(context, batch_norm_after(c), y, statistics);
    // On CUDA the fused op counts as the two ops that it replaces.
  }
  TRIREME_EXPECT(fits(context, x, c.input_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, w.value, c.weight_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, y, c.output_shape(), c.dtype));
  count(context, "convolution_statistics_forward", c, bytes_of({&x, &w.value, &y}));
  context.count("convolution_statistics_forward", y.bytes());
  if (c.is_padded()) {
    const CountingPause pause(context);
    const ArenaScope scope(context.workspace());
    return cuda::convolution_statistics_forward(context, c.with_padded_weight(), x,
                                                pad_weight(context, c, w.value), y, statistics);
  }
  cuda::convolution_statistics_forward(context, c, x, w.value, y, statistics);
}

void convolution_backward_data(Context& context, const Convolution& c, const Tensor& dy,
                               const Weight& w, const Tensor& addend, const Tensor& dx) {
  TRIREME_EXPECT(!c.is_padded());
  TRIREME_EXPECT(fits(context, dy, c.output_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, w.value, c.weight_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, dx, c.input_shape(), c.dtype));
  TRIREME_EXPECT(!addend.defined() || (fits(context, addend, c.input_shape(), c.dtype) &&
                                       (context.meta() || addend.data != dx.data)));
  const double addend_bytes = addend.defined() ? static_cast<double>(addend.bytes()) : 0;
  count(context, "convolution_backward_data", c, bytes_of({&dy, &w.value, &dx}) + addend_bytes);
  if (context.target() == DeviceKind::cuda)
    return cuda::convolution_backward_data(context, c, dy, w.value, addend, dx);
  const ArenaScope scope(context.workspace());
  const cpu::Product& product = cpu::convolution_backward_data(cpu::library_of(context), c);
  cpu::run(context, product,
           {dy,
            cpu::prepared_weight(context, product.second, w, &PreparedWeight::backward),
            dx,
            {},
            true});
  if (!addend.defined()) return;
  // oneDNN's gradients of convolutions cannot add.
  const CountingPause pause(context);
  add(context, addend, dx);
}

void convolution_backward_weight(Context& context, const Convolution& c, const Tensor& x,
                                 const Tensor& dy, const Tensor& dw, Write write) {
  TRIREME_EXPECT(fits(context, x, c.input_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, dy, c.output_shape(), c.dtype));
  TRIREME_EXPECT(fits(context, dw, c.weight_shape(), DType::float32));
  count(context, "convolution_backward_weight", c, bytes_of({&x, &dy, &dw}));
  if (context.target() == DeviceKind::cuda)
    return cuda::convolution_backward_weight(context, c, x, dy, dw, write);
  if (c.is_padded()) {
    const CountingPause pause(context);
    const ArenaScope scope(context.workspace());
    const Convolution padded = c.with_padded_weight();
    const Tensor gradient = context.workspace().allocate(DType::float32, padded.weight_shape());
    convolution_backward_weight(context, padded, x, dy, gradient, Write::assign);
    return change_channels(context, gradient, dw, write);
  }
  if (context.fusions() && cpu::prefers_im2col_gradient(c))
    return backward_weight_by_im2col(context, c, x, dy, dw, write);
  const cpu::Product& product = cpu::convolution_backward_weight(cpu::library_of(context), c);
  cpu::run(context, product, {x, dy, dw, {}, false}, write);
}

}  // namespace trireme::ops
