// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of norm_apply.cpp. Slabs are taken from the last to the first: the statistics have
// just read x in order, so the L2 cache holds its end.

#include "norm_slab.hpp"

namespace trireme::kernels {

template <class Space, class T, int lanes, bool relu, bool add>
struct SlabApply {
  NormShape shape;
  Slabs<lanes> slabs;
  NormApply<T> args;
  static constexpr int batch = 4, together = relu && add ? 2 : 3;
  // mean, scale, bias
  using Parameters = SlabParameters<lanes, 3>;

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
      parameters(1, lane) =
          args.gamma[channel] * (args.variance != nullptr
                                     ? 1.0f / sqrtf(args.variance[group] + args.epsilon)
                                     : args.rstd[group]);
      parameters(2, lane) = args.beta[channel];
    }
    team.team_barrier();
    for_each_place(team, slabs, slab,
                   [&](int, const SlabPlace& place) { make(slab, place, parameters); });
  }

  /// Normalizes the rows of one member.
  KOKKOS_FUNCTION void make(const Slab& slab, const SlabPlace& place,
                            const Parameters& parameters) const {
    float mean[lanes], scale[lanes], bias[lanes];
    load<lanes>(&parameters(0, place.lane), mean);
    load<lanes>(&parameters(1, place.lane), scale);
    load<lanes>(&parameters(2, place.lane), bias);
    const std::int64_t stride = slabs.stride();
    std::int64_t at =
        slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float value[count][lanes];
      [[maybe_unused]] float residual[add ? count : 1][lanes];
      for (int j = 0; j < count; ++j) {
        load<lanes>(args.x + at + j * stride, value[j]);
        if constexpr (add) load<lanes>(args.residual + at + j * stride, residual[j]);
      }
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < lanes; ++k) {
          float made = normalized(value[j][k] - mean[k], scale[k], bias[k]);
          if constexpr (add) made += residual[j][k];
          if constexpr (relu) made = made < 0 ? 0 : made;
          value[j][k] = made;
        }
        store<lanes>(value[j], args.y + at + j * stride);
        if constexpr (may_write_mask<relu, add, lanes>) {
          if (args.mask != nullptr)
            args.mask[pack_of<lanes>(at + j * stride)] = positive_bits<lanes>(value[j]);
        }
      }
      at += count * stride;
    });
  }
};

}  // namespace trireme::kernels
