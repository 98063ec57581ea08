// SPDX-License-Identifier: Apache-2.0
//
// Linear layers: checks shapes, counts work and dispatches.
//
// 1. Operands are converted to float8 if the layer uses it (float8.hpp).
// 2. CUDA: cuda/products.hpp, with bias, residual or GELU in cuBLASLt's epilogue. CPU: oneDNN
//    (cpu/linear.hpp).
// 3. A fused op runs as two ops if the target has no epilogue for it.
//
// Called by the model's layers in forward and backward.

#include "trireme/ops/linear.hpp"

#include "cpu/linear.hpp"
#include "cuda/products.hpp"
#include "float8.hpp"
#include "ops/dispatch/operand.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/element_type.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::ops {
namespace {

/// Returns whether the tensor is a matrix [rows, columns] of `dtype` on the context's device.
/// Leading dimensions count as one.
bool fits(const Context& context, const Tensor& tensor, std::int64_t rows, std::int64_t columns,
          DType dtype) {
  return tensor.defined() && tensor.shape.back() == columns &&
         tensor.elements() == rows * columns && tensor.dtype == dtype &&
         tensor.device == context.stream().device.kind;
}

bool weight_fits(const Context& context, const Tensor& tensor, const Linear& l, DType dtype) {
  return l.order == MatrixOrder::out_in ? fits(context, tensor, l.out, l.in, dtype)
                                        : fits(context, tensor, l.in, l.out, dtype);
}

bool bias_fits(const Context& context, const Tensor& bias, const Linear& l) {
  return !bias.defined() || fits(context, bias, 1, l.out, DType::float32) ||
         (context.target() == DeviceKind::cuda && fits(context, bias, 1, l.out, l.dtype));
}

/// Counts the products of an op.
void count(Context& context, const Op& op, const Linear& l, double bytes) {
  OpWork work{.flops = l.flops(),
              .bytes = bytes,
              .products = 1,
              .m = l.rows,
              .n = l.out,
              .k = l.in,
              .type = element_type(l.dtype),
              .float8 = l.in_float8()};
  if (op.pass == ProductPass::backward_data) std::swap(work.n, work.k);
  if (op.pass == ProductPass::backward_weight) work.m = l.out, work.n = l.in, work.k = l.rows;
  context.count(op, work);
}

/// Returns whether a product of this layer computes a GELU of this form in its epilogue. float8
/// products have none, and the library's is the tanh form.
bool fuses_gelu(const Context& context, const Linear& l, Gelu form) {
  return context.target() == DeviceKind::cuda && !l.in_float8() && form == Gelu::tanh;
}

}  // namespace

void linear_forward(Context& context, const Linear& l, const Tensor& x, const Weight& w,
                    const Tensor& bias, const Tensor& y) {
  TRIREME_EXPECT(fits(context, x, l.rows, l.in, l.dtype) &&
                 fits(context, y, l.rows, l.out, l.result_dtype()));
  TRIREME_EXPECT(weight_fits(context, w.value, l, l.dtype));
  TRIREME_EXPECT(bias_fits(context, bias, l));
  count(context, "linear_forward", l, bytes_of({&x, &w.value, &y}));
  const ArenaScope scope(context.workspace());
  const Tensor input = float8_operand(context, l, x, Float8::e4m3);
  const Weight weight = float8_weight(context, l, w, &PreparedWeight::forward);
  if (context.target() == DeviceKind::cuda)
    return cuda::linear_forward(context, l, input, weight.value, bias, {}, y);
  const cpu::Product& product = cpu::linear_forward(cpu::library_of(context), l, bias.defined());
  cpu::run(context, product,
           {input, cpu::prepared_weight(context, product.second, weight, &PreparedWeight::forward),
            y, bias, true});
}

void linear_backward_data(Context& context, const Linear& l, const Tensor& dy, const Weight& w,
                          const Tensor& dx) {
  TRIREME_EXPECT(fits(context, dy, l.rows, l.out, l.dtype) &&
                 fits(context, dx, l.rows, l.in, l.result_dtype()));
  TRIREME_EXPECT(weight_fits(context, w.value, l, l.dtype));
  count(context, "linear_backward_data", l, bytes_of({&dy, &w.value, &dx}));
  const ArenaScope scope(context.workspace());
  const Tensor input = float8_operand(context, l, dy, Float8::e5m2);
  const Weight weight = float8_weight(context, l, w, &PreparedWeight::backward);
  if (context.target() == DeviceKind::cuda)
    return cuda::linear_backward_data(context, l, input, weight.value, dx);
  const cpu::Product& product = cpu::linear_backward_data(cpu::library_of(context), l);
  cpu::run(context, product,
           {input,
            cpu::prepared_weight(context, product.second, weight, &PreparedWeight::backward),
            dx,
            {},
            true});
}

void linear_backward_weight(Context& context, const Linear& l, const Tensor& x, const Tensor& dy,
                            const Tensor& dw, const Tensor& dbias, Write write) {
  TRIREME_EXPECT(fits(context, x, l.rows, l.in, l.dtype) &&
                 fits(context, dy, l.rows, l.out, l.dtype));
  TRIREME_EXPECT(!dw.defined() || weight_fits(context, dw, l, DType::float32));
  TRIREME_EXPECT(!dbias.defined() || fits(context, dbias, 1, l.out, DType::float32));
  if (!dw.defined()) {
    if (dbias.defined()) column_sums(context, dy, dbias, write);
    return;
  }
  count(context, "linear_backward_weight", l, bytes_of({&x, &dy, &dw}));
  // 1. CUDA without float8: product and bias gradient in one call.
  if (context.target() == DeviceKind::cuda && !l.in_float8()) {
    if (dbias.defined()) context.count("linear_backward_weight", dy.bytes());
    return cuda::linear_backward_weight(context, l, x, dy, dw, dbias, write);
  }
  // 2. Otherwise the product alone. The arena scope ends before column_sums takes its own
  //    workspace.
  {
    const ArenaScope scope(context.workspace());
    const Tensor left = float8_operand(context, l, x, Float8::e4m3, true),
                 right = float8_operand(context, l, dy, Float8::e5m2, true);
    if (context.target() == DeviceKind::cuda) {
      cuda::linear_backward_weight(context, l, left, right, dw, {}, write);
    } else {
      const cpu::Product& product = cpu::linear_backward_weight(cpu::library_of(context), l, write);
      const bool out_in = l.order == MatrixOrder::out_in;
      // The product itself assigns or adds.
      cpu::run(context, product, {out_in ? right : left, out_in ? left : right, dw, {}, false});
    }
  }
  // 3. The bias gradient.
  if (dbias.defined()) column_sums(context, dy, dbias, write);
}

void linear_add_forward(Context& context, const Linear& l, const Tensor& x, const Weight& w,
                        const Tensor& bias, const Tensor& residual, const Tensor& y) {
  TRIREME_EXPECT(!l.float32_result && fits(context, residual, l.rows, l.out, l.dtype) &&
                 fits(context, y, l.rows, l.out, l.dtype));
  TRIREME_EXPECT(context.meta() || residual.data != y.data);
  if (context.target() != DeviceKind::cuda) {
    linear_forward(context, l, x, w, {}, y);
    return dropout_add(context, {}, y, bias, residual, y);
  }
  TRIREME_EXPECT(fits(context, x, l.rows, l.in, l.dtype) &&
                 weight_fits(context, w.value, l, l.dtype));
  TRIREME_EXPECT(bias_fits(context, bias, l));
  count(context, "linear_add_forward", l, bytes_of({&x, &w.value, &y}));
  context.count("linear_add_forward", y.bytes() + residual.bytes() + y.bytes());
  const ArenaScope scope(context.workspace());
  const Tensor input = float8_operand(context, l, x, Float8::e4m3);
  cuda::linear_forward(context, l, input,
                       float8_weight(context, l, w, &PreparedWeight::forward).value, bias, residual,
                       y);
}

void linear_gelu_forward(Context& context, const Linear& l, const Tensor& x, const Weight& w,
                         const Tensor& bias, const Tensor& z, const Tensor& y, Gelu form) {
  TRIREME_EXPECT(!l.float32_result && fits(context, z, l.rows, l.out, l.dtype) &&
                 fits(context, y, l.rows, l.out, l.dtype));
  if (!fuses_gelu(context, l, form)) {
    linear_forward(context, l, x, w, bias, z);
    return gelu_forward(context, z, y, form);
  }
  TRIREME_EXPECT(fits(context, x, l.rows, l.in, l.dtype) &&
                 weight_fits(context, w.value, l, l.dtype));
  TRIREME_EXPECT(bias_fits(context, bias, l));
  count(context, "linear_gelu_forward", l, bytes_of({&x, &w.value, &z}));
  context.count("linear_gelu_forward", z.bytes() + y.bytes());
  cuda::linear_gelu_forward(context, l, x, w.value, bias, z, y);
}

void linear_backward_data_gelu(Context& context, const Linear& l, const Tensor& dy, const Weight& w,
                               const Tensor& z, const Tensor& dz, Gelu form) {
  TRIREME_EXPECT(!l.float32_result && fits(context, z, l.rows, l.in, l.dtype) &&
                 fits(context, dz, l.rows, l.in, l.dtype));
  TRIREME_EXPECT(context.meta() || z.data != dz.data);
  if (!fuses_gelu(context, l, form)) {
    linear_backward_data(context, l, dy, w, dz);
    return gelu_backward(context, z, dz, dz, form);
  }
  TRIREME_EXPECT(fits(context, dy, l.rows, l.out, l.dtype) &&
                 weight_fits(context, w.value, l, l.dtype));
  count(context, "linear_backward_data_gelu", l, bytes_of({&dy, &w.value, &dz}));
  context.count("linear_backward_data_gelu", z.bytes() + 2 * dz.bytes());
  cuda::linear_backward_data_gelu(context, l, dy, w.value, z, dz);
}

}  // namespace trireme::ops
