// SPDX-License-Identifier: Apache-2.0
//
// Dropout: checks shapes and launches the kernels, which draw the mask from the counter-based
// generator in every pass.

#include "trireme/ops/dropout.hpp"

#include "ops/dispatch/raw_pointer.hpp"
#include "trireme/kernels/dropout.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Returns whether a and b have equal sizes and row widths, and the context's device.
bool same_size(const Context& context, const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.elements() == b.elements() &&
         a.shape.back() == b.shape.back() && a.device == context.stream().device.kind &&
         b.device == a.device;
}

kernels::DropoutMask mask_of([[maybe_unused]] const Context& context, const Dropout& op,
                             const Tensor& y) {
  TRIREME_EXPECT(op.probability >= 0 && op.probability < 1 && op.first_row >= 0 && op.context > 0);
  TRIREME_EXPECT(op.path_probability >= 0 && op.path_probability < 1);
  TRIREME_EXPECT((op.probability == 0 && op.path_probability == 0) ||
                 readable(context, op.sample_keys));
  const std::int64_t width = y.shape.back();
  return {y.elements() / width, width,  op.first_row,   op.context,
          op.probability,       op.key, op.sample_keys, op.path_probability,
          op.path_key};
}

}  // namespace

void dropout(Context& context, const Dropout& op, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(same_size(context, x, y) && x.dtype == y.dtype);
  const kernels::DropoutMask mask = mask_of(context, op, y);
  if (context.counts_only("dropout", x.bytes() + y.bytes())) return;
  with_element_type(
      y.dtype, [&]<class T>(T) { kernels::dropout(context.stream(), mask, x.as<T>(), y.as<T>()); });
}

void dropout_add(Context& context, const Dropout& op, const Tensor& x, const Tensor& bias,
                 const Tensor& residual, const Tensor& y) {
  TRIREME_EXPECT(same_size(context, x, y) && same_size(context, residual, y) &&
                 residual.dtype == y.dtype);
  TRIREME_EXPECT(x.dtype == y.dtype || x.dtype == DType::float32);
  TRIREME_EXPECT(!bias.defined() || (bias.elements() == y.shape.back() &&
                                     bias.dtype == DType::float32 && bias.device == y.device));
  const kernels::DropoutMask mask = mask_of(context, op, y);
  if (context.counts_only("dropout_add", x.bytes() + residual.bytes() + y.bytes())) return;
  const float* shift = bias.defined() ? bias.as<float>() : nullptr;
  with_element_type(y.dtype, [&]<class T>(T) {
    x.dtype == y.dtype ? kernels::dropout_add(context.stream(), mask, x.as<T>(), shift,
                                              residual.as<T>(), y.as<T>())
                       : kernels::dropout_add(context.stream(), mask, x.as<float>(), shift,
                                              residual.as<T>(), y.as<T>());
  });
}

}  // namespace trireme::ops
