// SPDX-License-Identifier: Apache-2.0
//
// The last batch norm of a residual block joined with the norm of its shortcut (normalization.hpp).
// Called by src/ops/normalization.cpp.
//
// Let g be the gradient behind the ReLU. The gradients of a norm are those of norm_backward.cpp:
//
//   1  SlabJoinedSums            slab   sums of g, g * (x - mean) and g * (x' - mean')
//   2  SegmentGradientSums  x 2         both sums of a channel
//   3  Finish               x 2         dgamma, dbeta, running statistics, coefficients
//   4  SlabJoinedInput           slab   dx and dx'
//
// Memory traffic: launches 1 and 4 read x, x', dy and the mask; launch 4 writes dx and dx'. One
// norm after the other would write g once, read it three times and read dy once. The host computes
// dx in the steps of norm_backward(): g overwrites dy, then dx' overwrites g. Its bits are those of
// two norms.

#include "kernels/space/round.hpp"
#include "norm_backward_device.hpp"
#include "norm_finish.hpp"
#include "norm_joined_device.hpp"
#include "norm_tile.hpp"

namespace trireme::kernels {
namespace {

const std::string apply_label = "trireme/kernels/norm_joined_apply";
const std::string partial_label = "trireme/kernels/norm_joined_partial";
const std::string channel_label = "trireme/kernels/norm_joined_channel";
const std::string finish_label = "trireme/kernels/norm_joined_finish";
const std::string input_label = "trireme/kernels/norm_joined_input";

/// Host form: y of one tile.
template <class Space, class T>
struct JoinedApply {
  NormShape shape;
  Tiling tiling;
  NormApply<T> args;
  ShortcutApply<T> shortcut;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = tile_lanes;
    const Tile tile = tiling[index];
    constexpr bool together = rounds_lanes<Space, T>;
    alignas(64) float mean[capacity], scale[capacity], bias[capacity], shortcut_mean[capacity],
        shortcut_scale[capacity], made[together ? capacity : 1];
    for (int c = 0; c < tile.width; ++c) {
      const std::int64_t channel = tile.channel + c;
      mean[c] = args.mean[channel];
      scale[c] = args.gamma[channel] * args.rstd[channel];
      bias[c] = args.beta[channel] + shortcut.beta[channel];
      shortcut_mean[c] = shortcut.mean[channel];
      shortcut_scale[c] = shortcut.gamma[channel] * shortcut.rstd[channel];
    }
    for (float* lanes : {mean, scale, bias, shortcut_mean, shortcut_scale})
      repeat_lanes(tile, lanes);
    for (std::int64_t step = 0; step < tile.steps(); ++step) {
      const std::int64_t offset = tile.offset + step * tile.stride;
      const int lanes = tile.lanes_of(step);
      const T *x = args.x + offset, *residual = shortcut.x + offset;
      T* y = args.y + offset;
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        const float both = (to_float(x[lane]) - mean[lane]) * scale[lane] + bias[lane] +
                           (to_float(residual[lane]) - shortcut_mean[lane]) * shortcut_scale[lane];
        const float value = both < 0 ? 0 : both;
        if constexpr (together)
          made[lane] = value;
        else
          y[lane] = from_float<T>(value);
      }
      if constexpr (together) round_lanes(made, y, lanes);
    }
  }
};

template <class Space, class T>
void run_apply(const Space& space, const NormShape& shape, const NormApply<T>& args,
               const ShortcutApply<T>& shortcut) {
  if constexpr (on_host<Space>) {
    const Tiling tiling(shape);
    for_each_index(space, apply_label, tiling.count(),
                   JoinedApply<Space, T>{shape, tiling, args, shortcut});
  } else {
    with_lanes<T>(shape, packs_fit(args.x, shortcut.x, args.y), [&](auto lanes) {
      using Work = SlabJoinedApply<Space, T, decltype(lanes)::value>;
      const Slabs<decltype(lanes)::value> slabs(shape);
      for_each_scratch_team<slab_members, Work::together>(space, apply_label, slabs.count(),
                                                          Work::scratch_bytes(),
                                                          Work{shape, slabs, args, shortcut});
    });
  }
}

/// Launches 2 and 3 of one norm.
template <class Space, class T>
void finish(const Space& space, const NormShape& shape, int chunks, const NormBackward<T>& args,
            const NormWorkspace& workspace) {
  add_chunks(space, channel_label, shape, chunks, args.rstd, workspace);
  finish_channels(space, finish_label,
                  finish_of<false>(shape, args, workspace, {workspace.channel_sums, 1}));
}

template <bool mask, int lanes, class Space, class T>
void run_backward(const Space& space, const NormShape& shape, const NormBackward<T>& block,
                  const NormBackward<T>& shortcut, const NormWorkspace& of_block,
                  const NormWorkspace& of_shortcut) {
  const Slabs<lanes> slabs(shape);
  using JoinedSums = SlabJoinedSums<Space, T, lanes, mask>;
  for_each_scratch_team<slab_members, JoinedSums::together>(
      space, partial_label, slabs.count(), JoinedSums::scratch_bytes(),
      JoinedSums{shape, slabs, block, shortcut, of_block.partials, of_shortcut.partials});
  finish(space, shape, slabs.chunks, block, of_block);
  finish(space, shape, slabs.chunks, shortcut, of_shortcut);
  using Input = SlabJoinedInput<Space, T, lanes, mask>;
  for_each_scratch_team<slab_members, Input::together>(
      space, input_label, slabs.count(), Input::scratch_bytes(),
      Input{shape, slabs, block, shortcut, of_block.coefficients, of_shortcut.coefficients});
}

/// Device form.
template <class Space, class T>
void run_backward(const Space& space, const NormShape& shape, const NormBackward<T>& block,
                  const NormBackward<T>& shortcut, const NormWorkspace& of_block,
                  const NormWorkspace& of_shortcut) {
  if constexpr (!on_host<Space>) {
    const bool fit =
        packs_fit(block.x, block.y, block.dy, block.dx, shortcut.x) && packs_fit(shortcut.dx);
    with_lanes<T>(shape, fit, [&](auto lanes) {
      constexpr int width = decltype(lanes)::value;
      if constexpr (may_write_mask<true, true, width>) {
        if (block.mask != nullptr)
          return run_backward<true, width>(space, shape, block, shortcut, of_block, of_shortcut);
      }
      run_backward<false, width>(space, shape, block, shortcut, of_block, of_shortcut);
    });
  }
}

}  // namespace

template <class T>
void norm_apply_joined(const Stream& stream, const NormShape& shape, const NormApply<T>& args,
                       const ShortcutApply<T>& shortcut) {
  dispatch(stream, [=](const auto& space) { run_apply(space, shape, args, shortcut); });
}
template void norm_apply_joined(const Stream&, const NormShape&, const NormApply<float>&,
                                const ShortcutApply<float>&);
template void norm_apply_joined(const Stream&, const NormShape&, const NormApply<BFloat16>&,
                                const ShortcutApply<BFloat16>&);
template void norm_apply_joined(const Stream&, const NormShape&, const NormApply<Float16>&,
                                const ShortcutApply<Float16>&);

template <class T>
void norm_backward_joined(const Stream& stream, const NormShape& shape,
                          const NormBackward<T>& block, const NormBackward<T>& shortcut,
                          const NormWorkspace& of_block, const NormWorkspace& of_shortcut) {
  if (stream.device.kind != DeviceKind::cuda && on_host<Kokkos::DefaultHostExecutionSpace>) {
    NormShape alone = shape;
    alone.relu = alone.add = false;
    NormBackward<T> first = block, second = shortcut;
    second.dy = first.dresidual = shortcut.dx;
    norm_backward(stream, shape, first, of_block);
    norm_backward(stream, alone, second, of_shortcut);
    return;
  }
  dispatch(stream, [=](const auto& space) {
    run_backward(space, shape, block, shortcut, of_block, of_shortcut);
  });
}
template void norm_backward_joined(const Stream&, const NormShape&, const NormBackward<float>&,
                                   const NormBackward<float>&, const NormWorkspace&,
                                   const NormWorkspace&);
template void norm_backward_joined(const Stream&, const NormShape&, const NormBackward<BFloat16>&,
                                   const NormBackward<BFloat16>&, const NormWorkspace&,
                                   const NormWorkspace&);
template void norm_backward_joined(const Stream&, const NormShape&, const NormBackward<Float16>&,
                                   const NormBackward<Float16>&, const NormWorkspace&,
                                   const NormWorkspace&);

}  // namespace trireme::kernels
