// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of norm_backward.cpp. How a member finds the elements that ReLU passed:
// - without an addition it repeats forward's arithmetic on x and the parameters, instead of reading
//   y;
// - behind an addition it reads forward's mask, which has a sixteenth of the bytes of y in
//   bfloat16, or y if there is no mask.
// The second pass takes slabs from the last to the first, because the L2 cache still holds their x
// and gradient.

#include "norm_slab.hpp"

namespace trireme::kernels {

/// First launch, a slab per team: partials = sum of g and sum of g * (x - mean) of every chunk and
/// channel. Writes dresidual = g behind an addition.
template <class Space, class T, int lanes, bool relu, bool add, bool mask>
struct SlabGradientSums {
  NormShape shape;
  Slabs<lanes> slabs;
  NormBackward<T> args;
  float* partials;
  static constexpr bool recomputes_sign = relu && !add, reads_y = relu && add && !mask;
  static constexpr int batch = reads_y ? 2 : 4, together = 3;
  // mean; scale, bias
  using Parameters = SlabParameters<lanes, recomputes_sign ? 3 : 1>;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() {
    return Parameters::bytes() + 2 * slab_members * lanes * static_cast<int>(sizeof(float));
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Parameters parameters(team);
    float *sums = team_scratch<float>(team, 2 * slab_members * lanes),
          *products = sums + slab_members * lanes;
    const Slab slab = slabs[team.league_rank()];
    const std::int64_t group_width = shape.channels / shape.groups;
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      const std::int64_t channel = slab.channel + lane,
                         group = slab.segment * shape.groups + channel / group_width;
      parameters(0, lane) = args.mean[group];
      if constexpr (recomputes_sign) {
        parameters(1, lane) = args.gamma[channel] * args.rstd[group];
        parameters(2, lane) = args.beta[channel];
      }
    }
    team.team_barrier();
    for_each_place(team, slabs, slab, [&](int member, const SlabPlace& place) {
      add_up(slab, place, parameters, sums + member * lanes, products + member * lanes);
    });
    team.team_barrier();
    const int width = slabs.width_in_channels();
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      double total = 0, product = 0;
      for (int row = 0; row < slabs.height; ++row) {
        total += sums[row * width + lane];
        product += products[row * width + lane];
      }
      partials[slabs.partial(slab, 0) + lane] = static_cast<float>(total);
      partials[slabs.partial(slab, 1) + lane] = static_cast<float>(product);
    }
  }

  KOKKOS_FUNCTION void add_up(const Slab& slab, const SlabPlace& place,
                              const Parameters& parameters, float* sums, float* products) const {
    float mean[lanes], sum[lanes], product[lanes];
    [[maybe_unused]] float scale[lanes], bias[lanes];
    load<lanes>(&parameters(0, place.lane), mean);
    if constexpr (recomputes_sign) {
      load<lanes>(&parameters(1, place.lane), scale);
      load<lanes>(&parameters(2, place.lane), bias);
    }
    for (int k = 0; k < lanes; ++k) sum[k] = product[k] = 0;
    const std::int64_t stride = slabs.stride();
    std::int64_t at =
        slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float x[count][lanes], g[count][lanes];
      [[maybe_unused]] float y[reads_y ? count : 1][lanes];
      [[maybe_unused]] unsigned passed[mask ? count : 1];
      for (int j = 0; j < count; ++j) {
        load<lanes>(args.x + at + j * stride, x[j]);
        load<lanes>(args.dy + at + j * stride, g[j]);
        if constexpr (reads_y) load<lanes>(args.y + at + j * stride, y[j]);
        if constexpr (mask) passed[j] = args.mask[pack_of<lanes>(at + j * stride)];
      }
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < lanes; ++k) {
          const float centered = x[j][k] - mean[k];
          if constexpr (recomputes_sign)
            g[j][k] = normalized(centered, scale[k], bias[k]) > 0 ? g[j][k] : 0;
          if constexpr (reads_y) g[j][k] = y[j][k] > 0 ? g[j][k] : 0;
          if constexpr (mask) g[j][k] = (passed[j] >> k & 1u) != 0 ? g[j][k] : 0;
          sum[k] += g[j][k];
          product[k] += g[j][k] * centered;
        }
        if constexpr (add) store<lanes>(g[j], args.dresidual + at + j * stride);
      }
      at += count * stride;
    });
    store<lanes>(sum, sums);
    store<lanes>(product, products);
  }
};

/// Second launch: channel_sums [segments, 2, channels] = sum of g and sum of g * xhat of every
/// channel over a segment, from its chunks.
template <class Space>
struct SegmentGradientSums {
  ChannelTeams teams;
  std::int64_t groups;
  const float *partials, *rstd;
  double* channel_sums;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const std::int64_t segment = team.league_rank() / teams.tiles,
                       group_width = teams.channels / groups;
    const float* of_segment = partials + segment * teams.count * 2 * teams.channels;
    double* out = channel_sums + segment * 2 * teams.channels;
    teams.run(
        team, team.league_rank() % teams.tiles,
        [&](int channel, int first, int step) {
          return teams.sum(of_segment, channel, first, step);
        },
        [&](int channel, const ChannelSums& sums) {
          out[channel] = sums.value[0];
          out[teams.channels + channel] =
              sums.value[1] * rstd[segment * groups + channel / group_width];
        });
  }
};

/// Third launch: the first teams add dgamma and dbeta over the segments, the others compute the
/// coefficients of the groups' dx. `Finish` does one channel or group.
template <class Space, class Finish>
struct FinishTeams {
  ChannelTeams teams;
  Finish finish;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  std::int64_t count() const {
    return teams.tiles + (finish.groups() + ChannelTeams::members - 1) / ChannelTeams::members;
  }
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    if (team.league_rank() < teams.tiles) {
      teams.run(
          team, team.league_rank(),
          [&](int channel, int first, int step) {
            return teams.sum(finish.channel_sums, channel, first, step);
          },
          [&](int channel, const ChannelSums& sums) {
            finish.parameters(channel, sums.value[0], sums.value[1]);
          });
      return;
    }
    const std::int64_t begin =
        static_cast<std::int64_t>(team.league_rank() - teams.tiles) * ChannelTeams::members;
    for (int i = team.team_rank(); i < ChannelTeams::members; i += team.team_size()) {
      if (begin + i < finish.groups()) finish.group(begin + i);
    }
  }
};

/// Last launch, a slab per team: dx.
template <class Space, class T, int lanes, bool relu, bool add>
struct SlabInputGradient {
  NormShape shape;
  Slabs<lanes> slabs;
  NormBackward<T> args;
  const float* coefficients;
  // Behind an addition, dresidual already holds the masked gradient.
  static constexpr bool recomputes_sign = relu && !add;
  // Four or five parameters of eight channels need the registers of two resident teams.
  static constexpr int batch = 4, together = 2;
  // mean, scale, level, slope; bias
  using Parameters = SlabParameters<lanes, recomputes_sign ? 5 : 4>;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() { return Parameters::bytes(); }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Parameters parameters(team);
    const Slab slab = slabs[team.league_size() - 1 - team.league_rank()];
    const std::int64_t group_width = shape.channels / shape.groups;
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      const std::int64_t channel = slab.channel + lane,
                         group = slab.segment * shape.groups + channel / group_width;
      parameters(0, lane) = args.mean[group];
      parameters(1, lane) = args.gamma[channel] * args.rstd[group];
      parameters(2, lane) = coefficients[2 * group];
      parameters(3, lane) = coefficients[2 * group + 1];
      if constexpr (recomputes_sign) parameters(4, lane) = args.beta[channel];
    }
    team.team_barrier();
    for_each_place(team, slabs, slab,
                   [&](int, const SlabPlace& place) { make(slab, place, parameters); });
  }

  KOKKOS_FUNCTION void make(const Slab& slab, const SlabPlace& place,
                            const Parameters& parameters) const {
    float mean[lanes], scale[lanes], level[lanes], slope[lanes];
    [[maybe_unused]] float bias[lanes];
    load<lanes>(&parameters(0, place.lane), mean);
    load<lanes>(&parameters(1, place.lane), scale);
    load<lanes>(&parameters(2, place.lane), level);
    load<lanes>(&parameters(3, place.lane), slope);
    if constexpr (recomputes_sign) load<lanes>(&parameters(4, place.lane), bias);
    const std::int64_t stride = slabs.stride();
    std::int64_t at =
        slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    const T* gradient = add ? args.dresidual : args.dy;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float x[count][lanes], g[count][lanes];
      for (int j = 0; j < count; ++j) {
        load<lanes>(args.x + at + j * stride, x[j]);
        load<lanes>(gradient + at + j * stride, g[j]);
      }
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < lanes; ++k) {
          const float centered = x[j][k] - mean[k];
          if constexpr (recomputes_sign)
            g[j][k] = normalized(centered, scale[k], bias[k]) > 0 ? g[j][k] : 0;
          g[j][k] = scale[k] * g[j][k] - level[k] - centered * slope[k];
        }
        store<lanes>(g[j], args.dx + at + j * stride);
      }
      at += count * stride;
    });
  }
};

}  // namespace trireme::kernels
