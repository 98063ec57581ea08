#include "trireme/ops/elementwise.hpp"

#include "trireme/kernels/elementwise.hpp"

namespace trireme::ops {
namespace {

void expect_alike([[maybe_unused]] const Tensor& a, [[maybe_unused]] const Tensor& b) {
  TRIREME_EXPECT(a.elements() == b.elements() && a.dtype == b.dtype);
  TRIREME_EXPECT(a.dtype == DType::float32 || a.dtype == DType::bfloat16);
}

void count(Context& context, std::int64_t bytes) { context.count(0, static_cast<double>(bytes)); }

}  // namespace

void relu_forward(Context& context, const Tensor& x, const Tensor& y) {
  expect_alike(x, y);
  count(context, x.bytes() + y.bytes());
  if (context.meta()) return;
  if (x.dtype == DType::float32) {
    kernels::relu_forward(context.stream(), x.elements(), x.as<float>(), y.as<float>());
  } else {
    kernels::relu_forward(context.stream(), x.elements(), x.as<BFloat16>(), y.as<BFloat16>());
  }
}

void relu_backward(Context& context, const Tensor& y, const Tensor& dy, const Tensor& dx) {
  expect_alike(y, dy);
  expect_alike(y, dx);
  count(context, y.bytes() + dy.bytes() + dx.bytes());
  if (context.meta()) return;
  if (y.dtype == DType::float32) {
    kernels::relu_backward(context.stream(), y.elements(), y.as<float>(), dy.as<float>(), dx.as<float>());
  } else {
    kernels::relu_backward(context.stream(), y.elements(), y.as<BFloat16>(), dy.as<BFloat16>(), dx.as<BFloat16>());
  }
}

void add(Context& context, const Tensor& x, const Tensor& y) {
  expect_alike(x, y);
  count(context, x.bytes() + 2 * y.bytes());
  if (context.meta()) return;
  if (x.dtype == DType::float32) {
    kernels::add(context.stream(), x.elements(), x.as<float>(), y.as<float>());
  } else {
    kernels::add(context.stream(), x.elements(), x.as<BFloat16>(), y.as<BFloat16>());
  }
}

void cast(Context& context, const Tensor& x, const Tensor& y) {
  if (x.dtype == y.dtype) return copy(context, x, y);
  TRIREME_EXPECT(x.elements() == y.elements());
  TRIREME_EXPECT((x.dtype == DType::float32 && y.dtype == DType::bfloat16) || (x.dtype == DType::bfloat16 && y.dtype == DType::float32));
  count(context, x.bytes() + y.bytes());
  if (context.meta()) return;
  if (x.dtype == DType::float32) {
    kernels::cast(context.stream(), x.elements(), x.as<float>(), y.as<BFloat16>());
  } else {
    kernels::cast(context.stream(), x.elements(), x.as<BFloat16>(), y.as<float>());
  }
}

void fill(Context& context, const Tensor& y, float value) {
  expect_alike(y, y);
  count(context, y.bytes());
  if (context.meta()) return;
  if (y.dtype == DType::float32) {
    kernels::fill(context.stream(), y.elements(), value, y.as<float>());
  } else {
    kernels::fill(context.stream(), y.elements(), value, y.as<BFloat16>());
  }
}

void copy(Context& context, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(x.bytes() == y.bytes() && x.dtype == y.dtype);
  count(context, x.bytes() + y.bytes());
  if (context.meta()) return;
  kernels::copy(context.stream(), x.bytes(), x.data, y.data);
}

}  // namespace trireme::ops
