// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of norm_joined.cpp: the norm of a block and that of its shortcut in one walk over the
// slabs. The ReLU's sign comes from forward's mask, or from y if there is none.
// Two rows are in flight for each member, and the parameters of one norm at a time are in
// registers: both norms together have 64 parameters for a pack of eight channels.

#include "norm_slab.hpp"

namespace trireme::kernels {

/// y of a slab per team.
template <class Space, class T, int lanes>
struct SlabJoinedApply {
  NormShape shape;
  Slabs<lanes> slabs;
  NormApply<T> args;
  ShortcutApply<T> shortcut;
  static constexpr int batch = 2, together = 2;
  // of each norm: mean, scale; and the sum of both biases
  using Parameters = SlabParameters<lanes, 5>;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() { return Parameters::bytes(); }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Parameters parameters(team);
    const Slab slab = slabs[team.league_size() - 1 - team.league_rank()];
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      const int channel = slab.channel + lane;
      parameters(0, lane) = args.mean[channel];
      parameters(1, lane) = args.gamma[channel] * args.rstd[channel];
      parameters(2, lane) = args.beta[channel] + shortcut.beta[channel];
      parameters(3, lane) = shortcut.mean[channel];
      parameters(4, lane) = shortcut.gamma[channel] * shortcut.rstd[channel];
    }
    team.team_barrier();
    for_each_place(team, slabs, slab,
                   [&](int, const SlabPlace& place) { make(slab, place, parameters); });
  }

  KOKKOS_FUNCTION void make(const Slab& slab, const SlabPlace& place,
                            const Parameters& parameters) const {
    float mean[lanes], scale[lanes], bias[lanes], shortcut_mean[lanes], shortcut_scale[lanes];
    load<lanes>(&parameters(0, place.lane), mean);
    load<lanes>(&parameters(1, place.lane), scale);
    load<lanes>(&parameters(2, place.lane), bias);
    load<lanes>(&parameters(3, place.lane), shortcut_mean);
    load<lanes>(&parameters(4, place.lane), shortcut_scale);
    const std::int64_t stride = slabs.stride();
    std::int64_t at =
        slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float value[count][lanes], residual[count][lanes];
      for (int j = 0; j < count; ++j) {
        load<lanes>(args.x + at + j * stride, value[j]);
        load<lanes>(shortcut.x + at + j * stride, residual[j]);
      }
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < lanes; ++k) {
          const float both = normalized(residual[j][k] - shortcut_mean[k], shortcut_scale[k],
                                        normalized(value[j][k] - mean[k], scale[k], bias[k]));
          value[j][k] = both < 0 ? 0 : both;
        }
        store<lanes>(value[j], args.y + at + j * stride);
        if constexpr (may_write_mask<true, true, lanes>) {
          if (args.mask != nullptr)
            args.mask[pack_of<lanes>(at + j * stride)] = positive_bits<lanes>(value[j]);
        }
      }
      at += count * stride;
    });
  }
};

/// Loads the gradients of `count` rows behind the ReLU: g = dy where y is positive, else 0.
template <int lanes, bool mask, int count, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_passed(const NormBackward<T>& args, std::int64_t at,
                                             std::int64_t stride, float (&g)[count][lanes]) {
  [[maybe_unused]] float y[mask ? 1 : count][lanes];
  [[maybe_unused]] unsigned passed[mask ? count : 1];
  for (int j = 0; j < count; ++j) {
    load<lanes>(args.dy + at + j * stride, g[j]);
    if constexpr (mask)
      passed[j] = args.mask[pack_of<lanes>(at + j * stride)];
    else
      load<lanes>(args.y + at + j * stride, y[j]);
  }
  for (int j = 0; j < count; ++j) {
    for (int k = 0; k < lanes; ++k) {
      if constexpr (mask)
        g[j][k] = (passed[j] >> k & 1u) != 0 ? g[j][k] : 0;
      else
        g[j][k] = y[j][k] > 0 ? g[j][k] : 0;
    }
  }
}

/// First launch, a slab per team: both partials = sum of g and sum of g * (x - mean) of every chunk
/// and channel.
template <class Space, class T, int lanes, bool mask>
struct SlabJoinedSums {
  NormShape shape;
  Slabs<lanes> slabs;
  NormBackward<T> block, shortcut;
  float *of_block, *of_shortcut;
  static constexpr int batch = 2, together = 2;
  // both means
  using Parameters = SlabParameters<lanes, 2>;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int member_sums = slab_members * lanes;
  static constexpr int scratch_bytes() {
    return Parameters::bytes() + 3 * member_sums * static_cast<int>(sizeof(float));
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Parameters parameters(team);
    // sums of g, and products with both x
    float* const sums = team_scratch<float>(team, 3 * member_sums);
    const Slab slab = slabs[team.league_rank()];
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      parameters(0, lane) = block.mean[slab.channel + lane];
      parameters(1, lane) = shortcut.mean[slab.channel + lane];
    }
    team.team_barrier();
    for_each_place(team, slabs, slab, [&](int member, const SlabPlace& place) {
      add_up(slab, place, parameters, sums + member * lanes);
    });
    team.team_barrier();
    const int width = slabs.width_in_channels();
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      double total[3] = {0, 0, 0};
      for (int row = 0; row < slabs.height; ++row) {
        for (int k = 0; k < 3; ++k) total[k] += sums[k * member_sums + row * width + lane];
      }
      const std::int64_t sum = slabs.partial(slab, 0) + lane,
                         product = slabs.partial(slab, 1) + lane;
      of_block[sum] = of_shortcut[sum] = static_cast<float>(total[0]);
      of_block[product] = static_cast<float>(total[1]);
      of_shortcut[product] = static_cast<float>(total[2]);
    }
  }

  KOKKOS_FUNCTION void add_up(const Slab& slab, const SlabPlace& place,
                              const Parameters& parameters, float* sums) const {
    float mean[lanes], shortcut_mean[lanes], sum[lanes], product[lanes], shortcut_product[lanes];
    load<lanes>(&parameters(0, place.lane), mean);
    load<lanes>(&parameters(1, place.lane), shortcut_mean);
    for (int k = 0; k < lanes; ++k) sum[k] = product[k] = shortcut_product[k] = 0;
    const std::int64_t stride = slabs.stride();
    std::int64_t at =
        slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float x[count][lanes], shortcut_x[count][lanes], g[count][lanes];
      for (int j = 0; j < count; ++j) {
        load<lanes>(block.x + at + j * stride, x[j]);
        load<lanes>(shortcut.x + at + j * stride, shortcut_x[j]);
      }
      load_passed<lanes, mask>(block, at, stride, g);
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < lanes; ++k) {
          sum[k] += g[j][k];
          product[k] += g[j][k] * (x[j][k] - mean[k]);
          shortcut_product[k] += g[j][k] * (shortcut_x[j][k] - shortcut_mean[k]);
        }
      }
      at += count * stride;
    });
    store<lanes>(sum, sums);
    store<lanes>(product, sums + member_sums);
    store<lanes>(shortcut_product, sums + 2 * member_sums);
  }
};

/// Last launch, a slab per team: dx of both norms.
template <class Space, class T, int lanes, bool mask>
struct SlabJoinedInput {
  NormShape shape;
  Slabs<lanes> slabs;
  NormBackward<T> block, shortcut;
  const float *of_block, *of_shortcut;  ///< coefficients
  static constexpr int batch = 2, together = 2;
  // of each norm: mean, scale, level, slope
  using Parameters = SlabParameters<lanes, 8>;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() { return Parameters::bytes(); }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Parameters parameters(team);
    const Slab slab = slabs[team.league_size() - 1 - team.league_rank()];
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      set(parameters, 0, lane, block, of_block, slab.channel + lane);
      set(parameters, 4, lane, shortcut, of_shortcut, slab.channel + lane);
    }
    team.team_barrier();
    for_each_place(team, slabs, slab,
                   [&](int, const SlabPlace& place) { make(slab, place, parameters); });
  }

  KOKKOS_FUNCTION static void set(const Parameters& parameters, int first, int lane,
                                  const NormBackward<T>& args, const float* coefficients,
                                  int channel) {
    parameters(first, lane) = args.mean[channel];
    parameters(first + 1, lane) = args.gamma[channel] * args.rstd[channel];
    parameters(first + 2, lane) = coefficients[2 * channel];
    parameters(first + 3, lane) = coefficients[2 * channel + 1];
  }

  KOKKOS_FUNCTION void make(const Slab& slab, const SlabPlace& place,
                            const Parameters& parameters) const {
    const std::int64_t stride = slabs.stride();
    std::int64_t at =
        slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float x[count][lanes], shortcut_x[count][lanes], g[count][lanes];
      for (int j = 0; j < count; ++j) {
        load<lanes>(block.x + at + j * stride, x[j]);
        load<lanes>(shortcut.x + at + j * stride, shortcut_x[j]);
      }
      // dx of the shortcut may be dy, so dy is read before both are written.
      load_passed<lanes, mask>(block, at, stride, g);
      write(parameters, 0, place.lane, x, g, block.dx + at, stride);
      write(parameters, 4, place.lane, shortcut_x, g, shortcut.dx + at, stride);
      at += count * stride;
    });
  }

  /// dx of one norm, whose parameters begin at `first`.
  template <int count>
  KOKKOS_FORCEINLINE_FUNCTION static void write(const Parameters& parameters, int first, int lane,
                                                const float (&x)[count][lanes],
                                                const float (&g)[count][lanes], T* dx,
                                                std::int64_t stride) {
    float mean[lanes], scale[lanes], level[lanes], slope[lanes];
    load<lanes>(&parameters(first, lane), mean);
    load<lanes>(&parameters(first + 1, lane), scale);
    load<lanes>(&parameters(first + 2, lane), level);
    load<lanes>(&parameters(first + 3, lane), slope);
    for (int j = 0; j < count; ++j) {
      float value[lanes];
      for (int k = 0; k < lanes; ++k)
        value[k] = scale[k] * g[j][k] - level[k] - (x[j][k] - mean[k]) * slope[k];
      store<lanes>(value, dx + j * stride);
    }
  }
};

}  // namespace trireme::kernels
