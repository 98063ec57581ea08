// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/activation.hpp"

#include "trireme/kernels/activation.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Returns whether both tensors have one size, one dtype and the context's device.
bool same_size_and_type(const Context& context, const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.elements() == b.elements() && a.dtype == b.dtype &&
         a.device == context.stream().device.kind && b.device == a.device;
}

/// Returns whether gated is [rows, 2 w] and y is [rows, w], of one dtype and on the context's
/// device.
bool is_gated_pair(const Context& context, const Tensor& gated, const Tensor& y) {
  return gated.defined() && y.defined() && gated.shape.back() == 2 * y.shape.back() &&
         gated.elements() == 2 * y.elements() && gated.dtype == y.dtype &&
         gated.device == context.stream().device.kind && y.device == gated.device;
}

std::int64_t rows_of(const Tensor& t) { return t.elements() / t.shape.back(); }

}  // namespace

void gelu_forward(Context& context, const Tensor& x, const Tensor& y, Gelu form) {
  TRIREME_EXPECT(same_size_and_type(context, x, y) && (context.meta() || x.data != y.data));
  if (context.counts_only("gelu_forward", x.bytes() + y.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::gelu_forward(context.stream(), form, x.elements(), x.as<T>(), y.as<T>());
  });
}

void gelu_backward(Context& context, const Tensor& x, const Tensor& dy, const Tensor& dx,
                   Gelu form) {
  TRIREME_EXPECT(same_size_and_type(context, x, dy) && same_size_and_type(context, x, dx));
  if (context.counts_only("gelu_backward", x.bytes() + dy.bytes() + dx.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::gelu_backward(context.stream(), form, x.elements(), x.as<T>(), dy.as<T>(), dx.as<T>());
  });
}

void silu_forward(Context& context, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(same_size_and_type(context, x, y) && (context.meta() || x.data != y.data));
  if (context.counts_only("silu_forward", x.bytes() + y.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::silu_forward(context.stream(), x.elements(), x.as<T>(), y.as<T>());
  });
}

void silu_backward(Context& context, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  TRIREME_EXPECT(same_size_and_type(context, x, dy) && same_size_and_type(context, x, dx));
  if (context.counts_only("silu_backward", x.bytes() + dy.bytes() + dx.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::silu_backward(context.stream(), x.elements(), x.as<T>(), dy.as<T>(), dx.as<T>());
  });
}

void swiglu_forward(Context& context, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(is_gated_pair(context, x, y));
  if (context.counts_only("swiglu_forward", x.bytes() + y.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::swiglu_forward(context.stream(), rows_of(y), y.shape.back(), x.as<T>(), y.as<T>());
  });
}

void swiglu_backward(Context& context, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  TRIREME_EXPECT(is_gated_pair(context, x, dy) && same_size_and_type(context, x, dx));
  if (context.counts_only("swiglu_backward", x.bytes() + dy.bytes() + dx.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::swiglu_backward(context.stream(), rows_of(dy), dy.shape.back(), x.as<T>(), dy.as<T>(),
                             dx.as<T>());
  });
}

}  // namespace trireme::ops
