// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/row_norm.hpp"

#include "trireme/kernels/norm/row_norm.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Returns whether t is [rows, width] in the op's dtype on the context's device.
bool is_activation(const Context& context, const RowNorm& op, const Tensor& t) {
  return t.defined() && t.shape.back() == op.width && t.elements() == op.rows * op.width &&
         t.dtype == op.dtype && t.device == context.stream().device.kind;
}
bool is_vector(const Context& context, std::int64_t elements, const Tensor& t) {
  return t.defined() && t.elements() == elements && t.dtype == DType::float32 &&
         t.device == context.stream().device.kind;
}

const float* optional_data(const Tensor& t) { return t.defined() ? t.as<float>() : nullptr; }

}  // namespace

void row_norm_forward(Context& context, const RowNorm& op, const Tensor& x, const Tensor& gamma,
                      const Tensor& beta, const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  TRIREME_EXPECT(is_activation(context, op, x) && is_activation(context, op, y));
  TRIREME_EXPECT(is_vector(context, op.width, gamma) &&
                 (!beta.defined() || is_vector(context, op.width, beta)));
  TRIREME_EXPECT(is_vector(context, op.rows, rstd) &&
                 (op.rms || is_vector(context, op.rows, mean)));
  if (context.counts_only("row_norm_forward", x.bytes() + y.bytes())) return;
  with_element_type(op.dtype, [&]<class T>(T) {
    kernels::row_norm_forward<T>(
        context.stream(), {op.rows, op.width, op.rms},
        {x.as<T>(), gamma.as<float>(), optional_data(beta), y.as<T>(),
         op.rms ? nullptr : mean.as<float>(), rstd.as<float>(), static_cast<float>(op.epsilon)});
  });
}

void row_norm_backward(Context& context, const RowNorm& op, const Tensor& x, const Tensor& dy,
                       const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                       const Tensor& dresidual, const Tensor& dx, const Tensor& dgamma,
                       const Tensor& dbeta, Write write) {
  TRIREME_EXPECT(is_activation(context, op, x) && is_activation(context, op, dy) &&
                 is_activation(context, op, dx));
  TRIREME_EXPECT(!dresidual.defined() || is_activation(context, op, dresidual));
  TRIREME_EXPECT(is_vector(context, op.width, gamma) && is_vector(context, op.rows, rstd) &&
                 (op.rms || is_vector(context, op.rows, mean)));
  TRIREME_EXPECT(is_vector(context, op.width, dgamma) &&
                 (!dbeta.defined() || is_vector(context, op.width, dbeta)));
  context.count("row_norm_backward", x.bytes() + dy.bytes() + dx.bytes() +
                                         (dresidual.defined() ? dresidual.bytes() : 0));
  const kernels::RowNormShape shape{op.rows, op.width, op.rms};
  const ArenaScope scope(context.workspace());
  const Tensor partials =
      context.workspace().allocate(DType::float32, {kernels::row_norm_partial_count(shape)});
  if (context.meta()) return;
  with_element_type(op.dtype, [&]<class T>(T) {
    kernels::row_norm_backward<T>(
        context.stream(), shape,
        {x.as<T>(), dy.as<T>(), dresidual.defined() ? dresidual.as<T>() : nullptr,
         gamma.as<float>(), op.rms ? nullptr : mean.as<float>(), rstd.as<float>(), dx.as<T>(),
         dgamma.as<float>(), dbeta.defined() ? dbeta.as<float>() : nullptr, write == Write::add,
         partials.as<float>()});
  });
}

}  // namespace trireme::ops
