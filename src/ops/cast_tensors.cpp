// SPDX-License-Identifier: Apache-2.0
//
// Casts of many tensors in few launches, and the 16-bit gradients of weights that wait for one.
// Called by the reducer of gradients and by ParameterStore.

#include "trireme/ops/cast_tensors.hpp"

#include <algorithm>
#include <array>

#include "ops/dispatch/counting_pause.hpp"
#include "trireme/kernels/cast_tensors.hpp"
#include "trireme/ops/element_type.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::ops {
namespace {

std::int64_t channels_of(const Tensor& tensor) { return tensor.shape.back(); }

/// Casts one tensor by the ops for one tensor.
void cast_alone(Context& context, const TensorCast& cast) {
  const bool same_channels = channels_of(cast.x) == channels_of(cast.y);
  if (same_channels && cast.write == Write::assign) return ops::cast(context, cast.x, cast.y);
  const ArenaScope scope(context.workspace());
  Tensor wide = cast.x;
  if (wide.dtype != cast.y.dtype) {
    wide = context.workspace().allocate(cast.y.dtype, cast.x.shape);
    ops::cast(context, cast.x, wide);
  }
  same_channels ? add(context, wide, cast.y) : change_channels(context, wide, cast.y, cast.write);
}

kernels::TensorCast arguments(const TensorCast& cast) {
  // Extents of vectors may be larger than an int.
  const bool same_channels = channels_of(cast.x) == channels_of(cast.y);
  const auto channels = [&](const Tensor& tensor) {
    return same_channels ? 1 : static_cast<std::int32_t>(channels_of(tensor));
  };
  return {.x = cast.x.data,
          .y = cast.y.data,
          .elements = cast.y.elements(),
          .x_channels = channels(cast.x),
          .y_channels = channels(cast.y),
          .x_type = element_type(cast.x.dtype),
          .y_type = element_type(cast.y.dtype),
          .add = cast.write == Write::add};
}

}  // namespace

void cast_tensors(Context& context, std::span<const TensorCast> casts) {
  // 1. Check the tensors and count all as one op.
  double bytes = 0;
  for (const TensorCast& cast : casts) {
    TRIREME_EXPECT(cast.x.device == cast.y.device);
    TRIREME_EXPECT(cast.x.dtype == DType::float32 || cast.y.dtype == DType::float32);
    TRIREME_EXPECT(cast.write == Write::assign || cast.y.dtype == DType::float32);
    TRIREME_EXPECT(channels_of(cast.x) >= channels_of(cast.y) &&
                   cast.x.elements() * channels_of(cast.y) ==
                       cast.y.elements() * channels_of(cast.x));
    bytes += static_cast<double>(cast.x.bytes() + cast.y.bytes());
  }
  if (casts.empty()) return;
  context.count("cast_tensors", bytes);
  // 2. One by one, or as lists that fit in one launch.
  if (!context.fusions()) {
    const CountingPause pause(context);
    for (const TensorCast& cast : casts) cast_alone(context, cast);
    return;
  }
  if (context.meta()) return;
  std::array<kernels::TensorCast, kernels::max_tensor_casts> list;
  for (std::size_t begin = 0; begin < casts.size(); begin += list.size()) {
    const std::size_t count = std::min(list.size(), casts.size() - begin);
    std::transform(casts.begin() + static_cast<std::ptrdiff_t>(begin),
                   casts.begin() + static_cast<std::ptrdiff_t>(begin + count), list.begin(),
                   arguments);
    kernels::cast_tensors(context.stream(), {list.data(), count});
  }
}

Tensor NarrowGradients::allocate(DType type, const Shape& shape) {
  if (mark_ < 0) mark_ = memory_.mark();
  return memory_.allocate(type, shape);
}

void NarrowGradients::convert(Context& context) {
  if (mark_ < 0) return;
  const CountingPause pause(context);
  cast_tensors(context, casts_);
  casts_.clear();
  memory_.rewind(mark_);
  mark_ = -1;
}

}  // namespace trireme::ops
