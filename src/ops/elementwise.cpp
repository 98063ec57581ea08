// SPDX-License-Identifier: Apache-2.0
//
// Elementwise ops: each function checks shapes, counts its bytes and launches one kernel. On meta
// it stops after counting.

#include "trireme/ops/elementwise.hpp"

#include <type_traits>

#include "ops/dispatch/launch_cast.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/pooling.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

void expect_alike([[maybe_unused]] const Tensor& a, [[maybe_unused]] const Tensor& b) {
  TRIREME_EXPECT(a.elements() == b.elements() && a.dtype == b.dtype);
  TRIREME_EXPECT(is_compute_type(a.dtype));
}

}  // namespace

void relu_forward(Context& context, const Tensor& x, const Tensor& y) {
  expect_alike(x, y);
  if (context.counts_only("relu_forward", x.bytes() + y.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::relu_forward(context.stream(), x.elements(), x.as<T>(), y.as<T>());
  });
}

void relu_backward(Context& context, const Tensor& y, const Tensor& dy, const Tensor& dx) {
  expect_alike(y, dy);
  expect_alike(y, dx);
  if (context.counts_only("relu_backward", y.bytes() + dy.bytes() + dx.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::relu_backward(context.stream(), y.elements(), y.as<T>(), dy.as<T>(), dx.as<T>());
  });
}

void add(Context& context, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(x.elements() == y.elements() && x.dtype == y.dtype);
  if (context.counts_only("add", x.bytes() + 2 * y.bytes())) return;
  if (x.dtype == DType::int32)
    return kernels::add(context.stream(), x.elements(), x.as<std::int32_t>(), y.as<std::int32_t>());
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::add(context.stream(), x.elements(), x.as<T>(), y.as<T>());
  });
}

void launch_cast(const Stream& stream, const Tensor& x, const Tensor& y) {
  const bool narrows = x.dtype == DType::float32;
  with_element_type(narrows ? y.dtype : x.dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, float>) {
      narrows ? kernels::cast(stream, x.elements(), x.as<float>(), y.as<T>())
              : kernels::cast(stream, x.elements(), x.as<T>(), y.as<float>());
    }
  });
}

void cast(Context& context, const Tensor& x, const Tensor& y) {
  if (x.dtype == y.dtype) return copy(context, x, y);
  TRIREME_EXPECT(x.elements() == y.elements());
  TRIREME_EXPECT(x.dtype == DType::float32 || y.dtype == DType::float32);
  context.count("cast", x.bytes() + y.bytes());
  if (!context.meta()) launch_cast(context.stream(), x, y);
}

void change_channels(Context& context, const Tensor& x, const Tensor& y, Write write) {
  const std::int64_t from = x.shape.back(), to = y.shape.back(), rows = x.elements() / from;
  TRIREME_EXPECT(x.dtype == y.dtype && rows == y.elements() / to);
  if (context.counts_only("change_channels", x.bytes() + y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::change_channels<T>(context.stream(), rows, from, x.as<T>(), to, y.as<T>(),
                                write == Write::add);
  });
}

void fill(Context& context, const Tensor& y, float value) {
  if (context.counts_only("fill", y.bytes())) return;
  if (y.dtype == DType::int32)
    return kernels::fill(context.stream(), y.elements(), value, y.as<std::int32_t>());
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::fill(context.stream(), y.elements(), value, y.as<T>());
  });
}

void copy(Context& context, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(x.bytes() == y.bytes() && x.dtype == y.dtype);
  context.count("copy", x.bytes() + y.bytes());
  // Between host and device memory this is a copy of the runtime, not a kernel.
  if (context.meta()) return;
  if (x.device != y.device)
    return copy_bytes(context.stream(), y.data, x.data, static_cast<std::size_t>(x.bytes()));
  kernels::copy(context.stream(), x.bytes(), x.data, y.data);
}

void weighted_sum(Context& context, float a, const Tensor& x, float b, const Tensor& z,
                  const Tensor& y) {
  expect_alike(x, y);
  TRIREME_EXPECT(x.dtype != DType::float16 && z.dtype == DType::float32 &&
                 z.elements() == x.elements());
  if (context.counts_only("weighted_sum", x.bytes() + z.bytes() + y.bytes())) return;
  const auto add = [&]<class T>(const T* from, T* to) {
    kernels::weighted_sum(context.stream(), x.elements(), a, from, b, z.as<float>(), to);
  };
  x.dtype == DType::float32 ? add(x.as<float>(), y.as<float>())
                            : add(x.as<BFloat16>(), y.as<BFloat16>());
}

void swap(Context& context, const Tensor& x, const Tensor& y) {
  expect_alike(x, y);
  TRIREME_EXPECT(x.dtype == DType::float32);
  if (context.counts_only("swap", 2 * (x.bytes() + y.bytes()))) return;
  kernels::swap(context.stream(), x.elements(), x.as<float>(), y.as<float>());
}

void scaled_copy(Context& context, const Tensor& x, float scale, const Tensor& y, Write write) {
  expect_alike(x, y);
  TRIREME_EXPECT(y.dtype == DType::float32);
  if (context.counts_only("scaled_copy", x.bytes() + y.bytes() * (write == Write::add ? 2 : 1)))
    return;
  kernels::scaled_copy(context.stream(), x.elements(), x.as<float>(), scale, write == Write::add,
                       y.as<float>());
}

void add_bias(Context& context, const Tensor& bias, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(x.elements() == y.elements() && (x.dtype == y.dtype || x.dtype == DType::float32));
  TRIREME_EXPECT(bias.dtype == DType::float32 && bias.elements() == y.shape.back());
  if (context.counts_only("add_bias", x.bytes() + y.bytes())) return;
  const std::int64_t width = y.shape.back(), rows = y.elements() / width;
  with_element_type(y.dtype, [&]<class T>(T) {
    x.dtype == y.dtype
        ? kernels::add_bias(context.stream(), rows, width, bias.as<float>(), x.as<T>(), y.as<T>())
        : kernels::add_bias(context.stream(), rows, width, bias.as<float>(), x.as<float>(),
                            y.as<T>());
  });
}

void column_sums(Context& context, const Tensor& dy, const Tensor& sums, Write write) {
  TRIREME_EXPECT(sums.dtype == DType::float32 && sums.elements() == dy.shape.back());
  context.count("column_sums", dy.bytes());
  const std::int64_t width = dy.shape.back();
  const kernels::RowSums rows{1, dy.elements() / width, width, 1.0f, write == Write::add};
  const ArenaScope scope(context.workspace());
  const Tensor partials =
      context.workspace().allocate(DType::float32, {kernels::row_sum_partial_count(rows)});
  if (context.meta()) return;
  with_element_type(dy.dtype, [&]<class T>(T) {
    kernels::sum_rows(context.stream(), rows, dy.as<T>(), partials.as<float>(), sums.as<float>());
  });
}

void layer_scale_forward(Context& context, const Tensor& scale, const Tensor& x,
                         const Tensor& residual, const Tensor& y) {
  expect_alike(x, y);
  expect_alike(residual, y);
  TRIREME_EXPECT(scale.dtype == DType::float32 && scale.elements() == y.shape.back());
  if (context.counts_only("layer_scale_forward", x.bytes() + residual.bytes() + y.bytes())) return;
  const std::int64_t width = y.shape.back();
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::layer_scale_forward(context.stream(), y.elements() / width, width, scale.as<float>(),
                                 x.as<T>(), residual.as<T>(), y.as<T>());
  });
}

void layer_scale_backward(Context& context, const Tensor& scale, const Tensor& x, const Tensor& dy,
                          const Tensor& dx, const Tensor& dscale, Write write) {
  expect_alike(x, dy);
  expect_alike(dx, dy);
  TRIREME_EXPECT(scale.dtype == DType::float32 && scale.elements() == dy.shape.back());
  const ArenaScope scope(context.workspace());
  const Tensor product = context.workspace().allocate(DType::float32, dy.shape);
  context.count("layer_scale_backward", x.bytes() + dy.bytes() + dx.bytes() + product.bytes());
  if (!context.meta()) {
    const std::int64_t width = dy.shape.back();
    with_element_type(dy.dtype, [&]<class T>(T) {
      kernels::layer_scale_backward(context.stream(), dy.elements() / width, width,
                                    scale.as<float>(), x.as<T>(), dy.as<T>(), dx.as<T>(),
                                    product.as<float>());
    });
  }
  if (dscale.defined()) column_sums(context, product, dscale, write);
}

}  // namespace trireme::ops
