// SPDX-License-Identifier: Apache-2.0
//
// Gradients of batch norm and group norm (Ioffe and Szegedy 2015, section 3). Called by
// src/ops/normalization.cpp in the backward pass. Let g be the gradient behind the activation, n
// the numbers of a group and xhat = (x - mean) * rstd:
//
//   dbeta = sum g,   dgamma = sum g * xhat,
//   dx = rstd * (gamma * g - sum(gamma * g) / n - xhat * sum(gamma * g * xhat) / n)
//
//   1  Partial   tile     sums of g and g * (x - mean); dresidual = g (behind an addition)
//   2  Channel            both sums of a channel over a segment
//   3  Finish             dgamma, dbeta, running statistics, the two coefficients of each group
//   4  Input     tile     dx
//
// Between 2 and 3 the ranks that compute a batch norm together gather their channel sums
// (norm_backward_sums(), norm_backward_input()). n and the sums in dx are then those of all ranks.
// Memory traffic: the first pass reads x, dy and y (with ReLU) and writes dresidual, so that the
// second pass reads g there. The second pass reads x and g and writes dx.
// An element is read before it is written, so dx or dresidual may be dy.

#include "kernels/space/round.hpp"
#include "norm_backward_device.hpp"
#include "norm_finish.hpp"
#include "norm_tile.hpp"

namespace trireme::kernels {
namespace {

const std::string partial_label = "trireme/kernels/norm_backward_partial";
const std::string channel_label = "trireme/kernels/norm_backward_channel";
const std::string finish_label = "trireme/kernels/norm_backward_finish";
const std::string input_label = "trireme/kernels/norm_backward_input";

template <class T, bool relu, bool add>
struct Partial {
  NormShape shape;
  Tiling tiling;
  NormBackward<T> args;
  float* partials;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = tile_lanes;
    const Tile tile = tiling[index];
    alignas(64) float mean[capacity], sum[capacity], product[capacity];
    const std::int64_t group_width = shape.channels / shape.groups;
    for (int c = 0; c < tile.width; ++c)
      mean[c] = args.mean[tile.segment * shape.groups + (tile.channel + c) / group_width];
    repeat_lanes(tile, mean);
    for (int lane = 0; lane < tile.lanes; ++lane) sum[lane] = product[lane] = 0;
    for (std::int64_t step = 0; step < tile.steps(); ++step) {
      const std::int64_t offset = tile.offset + step * tile.stride;
      const int lanes = tile.lanes_of(step);
      const T *x = args.x + offset, *y = relu ? args.y + offset : nullptr, *dy = args.dy + offset;
      T* dresidual = add ? args.dresidual + offset : nullptr;
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        float g = to_float(dy[lane]);
        if constexpr (relu) g = to_float(y[lane]) > 0 ? g : 0;
        if constexpr (add) dresidual[lane] = from_float<T>(g);
        sum[lane] += g;
        product[lane] += g * (to_float(x[lane]) - mean[lane]);
      }
    }
    double totals[capacity], products[capacity];
    for (int c = 0; c < tile.width; ++c) totals[c] = products[c] = 0;
    for (int k = 0; k < tile.repeat; ++k) {
      const float *lane_sum = sum + k * tile.width, *lane_product = product + k * tile.width;
#pragma omp simd
      for (int c = 0; c < tile.width; ++c) {
        totals[c] += lane_sum[c];
        products[c] += lane_product[c];
      }
    }
    float *out = partials + tiling.partial(tile, 0),
          *out_product = partials + tiling.partial(tile, 1);
    for (int c = 0; c < tile.width; ++c) {
      out[c] = static_cast<float>(totals[c]);
      out_product[c] = static_cast<float>(products[c]);
    }
  }
};

/// channel_sums [segments, 2, channels] = sum of g and sum of g * xhat of each channel over a
/// segment, from its chunks.
struct Channel {
  NormShape shape;
  Tiling tiling;
  const float *partials, *rstd;
  double* channel_sums;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = channel_lanes;
    const std::int64_t channels = shape.channels, runs = ceil_div(channels, capacity),
                       group_width = channels / shape.groups;
    const std::int64_t segment = index / runs, begin = index % runs * capacity;
    const int width = static_cast<int>(channels - begin < capacity ? channels - begin : capacity);
    double total[capacity] = {}, product[capacity] = {};
    for (std::int64_t chunk = 0; chunk < tiling.chunks; ++chunk) {
      const float *sums = partials + (segment * tiling.chunks + chunk) * 2 * channels + begin,
                  *products = sums + channels;
      for (int c = 0; c < width; ++c) {
        total[c] += sums[c];
        product[c] += products[c];
      }
    }
    double* out = channel_sums + segment * 2 * channels + begin;
    for (int c = 0; c < width; ++c) {
      out[c] = total[c];
      out[channels + c] = product[c] * rstd[segment * shape.groups + (begin + c) / group_width];
    }
  }
};

/// dx of one tile.
template <class Space, class T, bool relu, bool add>
struct Input {
  NormShape shape;
  Tiling tiling;
  NormBackward<T> args;
  const float* coefficients;

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    constexpr int capacity = tile_lanes;
    // Behind an addition, dresidual already holds the masked gradient.
    constexpr bool mask = relu && !add;
    constexpr bool together = rounds_lanes<Space, T>;
    const Tile tile = tiling[index];
    alignas(64) float mean[capacity], scale[capacity], level[capacity], slope[capacity],
        made[together ? capacity : 1];
    const std::int64_t group_width = shape.channels / shape.groups;
    for (int c = 0; c < tile.width; ++c) {
      const std::int64_t channel = tile.channel + c,
                         group = tile.segment * shape.groups + channel / group_width;
      mean[c] = args.mean[group];
      scale[c] = args.gamma[channel] * args.rstd[group];
      level[c] = coefficients[2 * group];
      slope[c] = coefficients[2 * group + 1];
    }
    repeat_lanes(tile, mean);
    repeat_lanes(tile, scale);
    repeat_lanes(tile, level);
    repeat_lanes(tile, slope);
    for (std::int64_t step = 0; step < tile.steps(); ++step) {
      const std::int64_t offset = tile.offset + step * tile.stride;
      const int lanes = tile.lanes_of(step);
      const T *x = args.x + offset, *y = mask ? args.y + offset : nullptr,
              *gradient = (add ? args.dresidual : args.dy) + offset;
      T* dx = args.dx + offset;
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        float g = to_float(gradient[lane]);
        if constexpr (mask) g = to_float(y[lane]) > 0 ? g : 0;
        const float value =
            scale[lane] * g - level[lane] - (to_float(x[lane]) - mean[lane]) * slope[lane];
        if constexpr (together)
          made[lane] = value;
        else
          dx[lane] = from_float<T>(value);
      }
      if constexpr (together) round_lanes(made, dx, lanes);
    }
  }
};

/// Launches 1 and 2: the channel sums, and dresidual.
template <bool relu, bool add, class Space, class T>
void add_up(const Space& space, const NormShape& shape, const NormBackward<T>& args,
            const NormWorkspace& workspace) {
  if constexpr (on_host<Space>) {
    const Tiling tiling(shape);
    for_each_index(space, partial_label, tiling.count(),
                   Partial<T, relu, add>{shape, tiling, args, workspace.partials});
    for_each_index(space, channel_label, shape.segments * ceil_div(shape.channels, channel_lanes),
                   Channel{shape, tiling, workspace.partials, args.rstd, workspace.channel_sums});
  } else {
    with_lanes<T>(
        shape, packs_fit(args.x, args.y, args.dy, args.dx, args.dresidual), [&](auto lanes) {
          constexpr int width = decltype(lanes)::value;
          const Slabs<width> slabs(shape);
          const auto add_up_slabs = [&](auto mask) {
            using Sums = SlabGradientSums<Space, T, width, relu, add, decltype(mask)::value>;
            for_each_scratch_team<slab_members, Sums::together>(
                space, partial_label, slabs.count(), Sums::scratch_bytes(),
                Sums{shape, slabs, args, workspace.partials});
          };
          if constexpr (may_write_mask<relu, add, width>) {
            args.mask != nullptr ? add_up_slabs(std::true_type()) : add_up_slabs(std::false_type());
          } else {
            add_up_slabs(std::false_type());
          }
          add_chunks(space, channel_label, shape, slabs.chunks, args.rstd, workspace);
        });
  }
}

/// Launches 3 and 4: the gradients of the parameters, running statistics, dx.
template <bool relu, bool add, bool synchronized, class Space, class T>
void write_gradients(const Space& space, const NormShape& shape, const NormBackward<T>& args,
                     const NormWorkspace& workspace, const NormBatchSums& batches) {
  const auto finish = finish_of<synchronized>(shape, args, workspace, batches);
  if constexpr (on_host<Space>) {
    const Tiling tiling(shape);
    for_each_index(space, finish_label, shape.channels + finish.groups(), finish);
    for_each_index(space, input_label, tiling.count(),
                   Input<Space, T, relu, add>{shape, tiling, args, workspace.coefficients});
  } else {
    with_lanes<T>(shape, packs_fit(args.x, args.y, args.dy, args.dx, args.dresidual),
                  [&](auto lanes) {
                    constexpr int width = decltype(lanes)::value;
                    using Result = SlabInputGradient<Space, T, width, relu, add>;
                    const Slabs<width> slabs(shape);
                    finish_channels(space, finish_label, finish);
                    for_each_scratch_team<slab_members, Result::together>(
                        space, input_label, slabs.count(), Result::scratch_bytes(),
                        Result{shape, slabs, args, workspace.coefficients});
                  });
  }
}

/// Calls run(relu, add) with the options of the shape as std::bool_constant.
template <class Run>
void with_activation(const NormShape& shape, const Run& run) {
  if (shape.relu) {
    shape.add ? run(std::true_type(), std::true_type()) : run(std::true_type(), std::false_type());
  } else {
    shape.add ? run(std::false_type(), std::true_type())
              : run(std::false_type(), std::false_type());
  }
}

}  // namespace

template <class T>
void norm_backward(const Stream& stream, const NormShape& shape, const NormBackward<T>& args,
                   const NormWorkspace& workspace) {
  dispatch(stream, [=](const auto& space) {
    with_activation(shape, [&](auto relu, auto add) {
      add_up<decltype(relu)::value, decltype(add)::value>(space, shape, args, workspace);
      write_gradients<decltype(relu)::value, decltype(add)::value, false>(
          space, shape, args, workspace, {workspace.channel_sums, 1});
    });
  });
}
template <class T>
void norm_backward_sums(const Stream& stream, const NormShape& shape, const NormBackward<T>& args,
                        const NormWorkspace& workspace) {
  dispatch(stream, [=](const auto& space) {
    with_activation(shape, [&](auto relu, auto add) {
      add_up<decltype(relu)::value, decltype(add)::value>(space, shape, args, workspace);
    });
  });
}
template <class T>
void norm_backward_input(const Stream& stream, const NormShape& shape, const NormBackward<T>& args,
                         const NormWorkspace& workspace, const NormBatchSums& batches) {
  dispatch(stream, [=](const auto& space) {
    with_activation(shape, [&](auto relu, auto add) {
      write_gradients<decltype(relu)::value, decltype(add)::value, true>(space, shape, args,
                                                                         workspace, batches);
    });
  });
}
template void norm_backward(const Stream&, const NormShape&, const NormBackward<float>&,
                            const NormWorkspace&);
template void norm_backward(const Stream&, const NormShape&, const NormBackward<BFloat16>&,
                            const NormWorkspace&);
template void norm_backward(const Stream&, const NormShape&, const NormBackward<Float16>&,
                            const NormWorkspace&);
template void norm_backward_sums(const Stream&, const NormShape&, const NormBackward<float>&,
                                 const NormWorkspace&);
template void norm_backward_sums(const Stream&, const NormShape&, const NormBackward<BFloat16>&,
                                 const NormWorkspace&);
template void norm_backward_sums(const Stream&, const NormShape&, const NormBackward<Float16>&,
                                 const NormWorkspace&);
template void norm_backward_input(const Stream&, const NormShape&, const NormBackward<float>&,
                                  const NormWorkspace&, const NormBatchSums&);
template void norm_backward_input(const Stream&, const NormShape&, const NormBackward<BFloat16>&,
                                  const NormWorkspace&, const NormBatchSums&);
template void norm_backward_input(const Stream&, const NormShape&, const NormBackward<Float16>&,
                                  const NormWorkspace&, const NormBatchSums&);

}  // namespace trireme::kernels
