// SPDX-License-Identifier: Apache-2.0
//
// Periodic borders and larger images: checks shapes, counts bytes and launches the kernels.
#include "trireme/ops/pixel_copies.hpp"

#include <algorithm>

#include "ops/dispatch/operand.hpp"
#include "trireme/kernels/image/pixel_copies.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Returns whether `larger` has the images of `smaller`, with other rows and columns, in memory of
/// its own.
bool are_copies(const Context& context, const Tensor& smaller, const Tensor& larger,
                std::int64_t height, std::int64_t width) {
  return smaller.shape.rank() == 4 && is_compute_type(smaller.dtype) &&
         fits(context, smaller, smaller.shape, smaller.dtype) &&
         fits(context, larger, {smaller.shape[0], height, width, smaller.shape[3]},
              smaller.dtype) &&
         (context.meta() || smaller.data != larger.data);
}

kernels::Images images_of(const Tensor& x) {
  return {x.shape[0], x.shape[1], x.shape[2], x.shape[3]};
}

bool is_padded(const Context& context, const Padding& padding, const Tensor& smaller,
               const Tensor& larger) {
  const std::int64_t most = std::min(smaller.shape[1], smaller.shape[2]);
  return are_copies(context, smaller, larger, smaller.shape[1] + padding.sum(),
                    smaller.shape[2] + padding.sum()) &&
         std::min(padding.before, padding.after) >= 0 &&
         std::max(padding.before, padding.after) <= most;
}

bool is_upsampled(const Context& context, std::int64_t factor, const Tensor& smaller,
                  const Tensor& larger) {
  return factor > 0 &&
         are_copies(context, smaller, larger, factor * smaller.shape[1], factor * smaller.shape[2]);
}

}  // namespace

void periodic_pad_forward(Context& context, const Padding& padding, const Tensor& x,
                          const Tensor& y) {
  TRIREME_EXPECT(is_padded(context, padding, x, y));
  if (context.counts_only("periodic_pad_forward", x.bytes() + y.bytes())) return;
  const kernels::Borders borders{padding.before, padding.after};
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::pad_periodically(context.stream(), images_of(x), borders, x.as<T>(), y.as<T>());
  });
}

void periodic_pad_backward(Context& context, const Padding& padding, const Tensor& dy,
                           const Tensor& addend, const Tensor& dx) {
  TRIREME_EXPECT(is_padded(context, padding, dx, dy) &&
                 (!addend.defined() || fits(context, addend, dx.shape, dx.dtype)));
  const std::int64_t addend_bytes = addend.defined() ? addend.bytes() : 0;
  if (context.counts_only("periodic_pad_backward", dx.bytes() + dy.bytes() + addend_bytes)) return;
  const kernels::Borders borders{padding.before, padding.after};
  with_element_type(dx.dtype, [&]<class T>(T) {
    kernels::sum_periodic_copies(context.stream(), images_of(dx), borders, dy.as<T>(),
                                 addend.defined() ? addend.as<T>() : nullptr, dx.as<T>());
  });
}

void upsample_forward(Context& context, std::int64_t factor, const Tensor& x, const Tensor& y) {
  TRIREME_EXPECT(is_upsampled(context, factor, x, y));
  if (context.counts_only("upsample_forward", x.bytes() + y.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::upsample(context.stream(), images_of(x), factor, x.as<T>(), y.as<T>());
  });
}

void upsample_backward(Context& context, std::int64_t factor, const Tensor& dy, const Tensor& dx) {
  TRIREME_EXPECT(is_upsampled(context, factor, dx, dy));
  if (context.counts_only("upsample_backward", dx.bytes() + dy.bytes())) return;
  with_element_type(dx.dtype, [&]<class T>(T) {
    kernels::sum_upsampled(context.stream(), images_of(dx), factor, dy.as<T>(), dx.as<T>());
  });
}

}  // namespace trireme::ops
