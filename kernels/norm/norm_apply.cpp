// SPDX-License-Identifier: Apache-2.0
//
// y = act(gamma * (x - mean) * rstd + beta [+ residual]). Called by src/ops/normalization.cpp after
// the statistics, and in evaluation with the running ones.
// Plan: a tile per task on the host, a slab per team on a device. The mean is subtracted before the
// scale, so that a large mean costs no digits. ReLU passes a NaN on.
// Memory traffic: x and residual are read once, y is written once.

#include "kernels/space/round.hpp"
#include "norm_apply_device.hpp"
#include "norm_tile.hpp"

#include <cmath>

namespace trireme::kernels {
namespace {

const std::string apply_label = "trireme/kernels/norm_apply";

/// Host form: one tile.
template <class Space, class T, bool relu, bool add>
struct Apply {
  NormShape shape;
  Tiling tiling;
  NormApply<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = tile_lanes;
    const Tile tile = tiling[index];
    constexpr bool together = rounds_lanes<Space, T>;
    alignas(64) float mean[capacity], scale[capacity], bias[capacity],
        made[together ? capacity : 1];
    const std::int64_t group_width = shape.channels / shape.groups;
    for (int c = 0; c < tile.width; ++c) {
      const std::int64_t channel = tile.channel + c,
                         group = tile.segment * shape.groups + channel / group_width;
      mean[c] = args.mean[group];
      const float rstd = args.variance != nullptr
                             ? 1.0f / sqrtf(args.variance[group] + args.epsilon)
                             : args.rstd[group];
      scale[c] = args.gamma[channel] * rstd;
      bias[c] = args.beta[channel];
    }
    repeat_lanes(tile, mean);
    repeat_lanes(tile, scale);
    repeat_lanes(tile, bias);
    for (std::int64_t step = 0; step < tile.steps(); ++step) {
      const std::int64_t offset = tile.offset + step * tile.stride;
      const int lanes = tile.lanes_of(step);
      const T *x = args.x + offset, *residual = add ? args.residual + offset : nullptr;
      T* y = args.y + offset;
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        float value = (to_float(x[lane]) - mean[lane]) * scale[lane] + bias[lane];
        if constexpr (add) value += to_float(residual[lane]);
        if constexpr (relu) value = value < 0 ? 0 : value;
        if constexpr (together)
          made[lane] = value;
        else
          y[lane] = from_float<T>(value);
      }
      if constexpr (together) round_lanes(made, y, lanes);
    }
  }
};

template <bool relu, bool add, class Space, class T>
void run_apply(const Space& space, const NormShape& shape, const NormApply<T>& args) {
  if constexpr (on_host<Space>) {
    const Tiling tiling(shape);
    for_each_index(space, apply_label, tiling.count(),
                   Apply<Space, T, relu, add>{shape, tiling, args});
  } else {
    with_lanes<T>(shape, packs_fit(args.x, args.residual, args.y), [&](auto lanes) {
      using Work = SlabApply<Space, T, decltype(lanes)::value, relu, add>;
      const Slabs<decltype(lanes)::value> slabs(shape);
      for_each_scratch_team<slab_members, Work::together>(
          space, apply_label, slabs.count(), Work::scratch_bytes(), Work{shape, slabs, args});
    });
  }
}

}  // namespace

std::int64_t norm_mask_bytes(const NormShape& shape, std::int64_t element_bytes,
                             DeviceKind target) {
  const std::int64_t lanes = pack_bytes / element_bytes;
  const bool device = target == DeviceKind::cuda || !on_host<Kokkos::DefaultHostExecutionSpace>;
  return device && shape.relu && shape.add && shape.channels % lanes == 0
             ? shape.segments * shape.rows * shape.channels / lanes
             : 0;
}

template <class T>
void norm_apply(const Stream& stream, const NormShape& shape, const NormApply<T>& args) {
  dispatch(stream, [=](const auto& space) {
    if (shape.relu) {
      shape.add ? run_apply<true, true>(space, shape, args)
                : run_apply<true, false>(space, shape, args);
    } else {
      shape.add ? run_apply<false, true>(space, shape, args)
                : run_apply<false, false>(space, shape, args);
    }
  });
}
template void norm_apply(const Stream&, const NormShape&, const NormApply<float>&);
template void norm_apply(const Stream&, const NormShape&, const NormApply<BFloat16>&);
template void norm_apply(const Stream&, const NormShape&, const NormApply<Float16>&);

}  // namespace trireme::kernels
