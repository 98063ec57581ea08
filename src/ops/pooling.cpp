// SPDX-License-Identifier: Apache-2.0
//
// Max and average pooling: checks shapes, counts bytes and launches the kernels.

#include "trireme/ops/pooling.hpp"

#include "ops/dispatch/operand.hpp"
#include "trireme/kernels/pooling.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Returns whether the tensor is [batch, .., channels] with `pixels` pixels, on the context's
/// device.
bool is_image(const Context& context, const Tensor& tensor, std::int64_t batch, std::int64_t pixels,
              std::int64_t channels) {
  return tensor.defined() && tensor.shape[0] == batch && tensor.shape.back() == channels &&
         tensor.elements() == batch * pixels * channels &&
         tensor.device == context.stream().device.kind;
}

kernels::PoolWindows windows_of(const Pooling& p) {
  TRIREME_EXPECT(p.padding < p.kernel && p.kernel <= 15);
  return {p.batch,       p.height, p.width,  p.channels, p.out_height(),
          p.out_width(), p.kernel, p.stride, p.padding};
}

}  // namespace

void max_pool_forward(Context& context, const Pooling& p, const Tensor& x, const Tensor& y,
                      const Tensor& winners) {
  TRIREME_EXPECT(fits(context, x, {p.batch, p.height, p.width, p.channels}, p.dtype) &&
                 fits(context, y, p.output_shape(), p.dtype));
  TRIREME_EXPECT(fits(context, winners, p.output_shape(), DType::uint8));
  context.count("max_pool_forward", x.bytes() + y.bytes() + winners.bytes());
  const kernels::PoolWindows windows = windows_of(p);
  if (context.meta()) return;
  auto* const places = winners.as<std::uint8_t>();
  with_element_type(p.dtype, [&]<class T>(T) {
    kernels::max_pool_forward(context.stream(), windows, x.as<T>(), y.as<T>(), places);
  });
}

void max_pool_backward(Context& context, const Pooling& p, const Tensor& dy, const Tensor& winners,
                       const Tensor& dx) {
  TRIREME_EXPECT(fits(context, dx, {p.batch, p.height, p.width, p.channels}, p.dtype) &&
                 fits(context, dy, p.output_shape(), p.dtype));
  TRIREME_EXPECT(fits(context, winners, p.output_shape(), DType::uint8));
  context.count("max_pool_backward", dx.bytes() + dy.bytes() + winners.bytes());
  const kernels::PoolWindows windows = windows_of(p);
  if (context.meta()) return;
  const auto* const places = winners.as<std::uint8_t>();
  with_element_type(p.dtype, [&]<class T>(T) {
    kernels::max_pool_backward(context.stream(), windows, dy.as<T>(), places, dx.as<T>());
  });
}

void mean_pool_forward(Context& context, const Pooling& p, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(fits(context, x, {p.batch, p.height, p.width, p.channels}, p.dtype) &&
                 fits(context, y, p.output_shape(), p.dtype));
  const kernels::PoolWindows windows = windows_of(p);
  if (context.counts_only("mean_pool_forward", x.bytes() + y.bytes())) return;
  with_element_type(p.dtype, [&]<class T>(T) {
    kernels::mean_pool_forward(context.stream(), windows, x.as<T>(), y.as<T>());
  });
}

void mean_pool_backward(Context& context, const Pooling& p, const Tensor& dy, const Tensor& dx) {
  TRIREME_EXPECT(fits(context, dx, {p.batch, p.height, p.width, p.channels}, p.dtype) &&
                 fits(context, dy, p.output_shape(), p.dtype));
  const kernels::PoolWindows windows = windows_of(p);
  if (context.counts_only("mean_pool_backward", dx.bytes() + dy.bytes())) return;
  with_element_type(p.dtype, [&]<class T>(T) {
    kernels::mean_pool_backward(context.stream(), windows, dy.as<T>(), dx.as<T>());
  });
}

void average_pool_forward(Context& context, std::int64_t batch, std::int64_t pixels,
                          std::int64_t channels, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(is_image(context, x, batch, pixels, channels) &&
                 is_image(context, y, batch, 1, channels) && x.dtype == y.dtype);
  context.count("average_pool_forward", x.bytes() + y.bytes());
  const kernels::RowSums sums{batch, pixels, channels, 1.0f / static_cast<float>(pixels), false};
  const ArenaScope scope(context.workspace());
  const Tensor partials =
      context.workspace().allocate(DType::float32, {kernels::row_sum_partial_count(sums)});
  if (context.meta()) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::sum_rows(context.stream(), sums, x.as<T>(), partials.as<float>(), y.as<T>());
  });
}

void average_pool_backward(Context& context, std::int64_t batch, std::int64_t pixels,
                           std::int64_t channels, const Tensor& dy, const Tensor& dx) {
  TRIREME_EXPECT(is_image(context, dx, batch, pixels, channels) &&
                 is_image(context, dy, batch, 1, channels) && dx.dtype == dy.dtype);
  if (context.counts_only("average_pool_backward", dx.bytes() + dy.bytes())) return;
  const kernels::RowSums sums{batch, pixels, channels, 1.0f / static_cast<float>(pixels), false};
  with_element_type(dy.dtype, [&]<class T>(T) {
    kernels::broadcast_rows(context.stream(), sums, dy.as<T>(), dx.as<T>());
  });
}

}  // namespace trireme::ops
