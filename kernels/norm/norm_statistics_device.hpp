// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of norm_statistics.cpp. Each member shifts its numbers by the first one. Members and
// chunks are combined in double, shifted by the first of their means.

#include "norm_slab.hpp"

namespace trireme::kernels {

/// Adds one part to sums around `shift` (Chan, Golub and LeVeque 1983): sum of n_i * d_i, and of
/// M2_i + n_i * d_i^2, with d_i = mean_i - shift.
KOKKOS_INLINE_FUNCTION void add_moments(ChannelSums& sums, double count, double difference,
                                        double m2) {
  sums.value[0] += count * difference;
  sums.value[1] += m2 + count * difference * difference;
}
/// Returns the mean and M2 of all `count` numbers from such sums.
KOKKOS_INLINE_FUNCTION ChannelSums combined(const ChannelSums& sums, double count, double shift) {
  return {{shift + sums.value[0] / count, sums.value[1] - sums.value[0] * sums.value[0] / count}};
}

/// First launch, a slab per team: partials = mean and M2 of every chunk and channel.
template <class Space, class T, int lanes>
struct SlabStatistics {
  Slabs<lanes> slabs;
  const T* x;
  float* partials;
  static constexpr int batch = 8, together = 3;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() {
    return 2 * slab_members * lanes * static_cast<int>(sizeof(float));
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    float *means = team_scratch<float>(team, 2 * slab_members * lanes),
          *squares = means + slab_members * lanes;
    const Slab slab = slabs[team.league_rank()];
    for_each_place(team, slabs, slab, [&](int member, const SlabPlace& place) {
      if (place.row < slab.rows)
        add_up(slab, place, means + member * lanes, squares + member * lanes);
    });
    team.team_barrier();
    const int width = slabs.width_in_channels(),
              occupied_rows = slab.rows < slabs.height ? slab.rows : slabs.height;
    for (int lane = team.team_rank(); lane < slab.channels; lane += team.team_size()) {
      ChannelSums sums;
      for (int row = 0; row < occupied_rows; ++row) {
        const int count = (slab.rows - row + slabs.height - 1) / slabs.height;
        add_moments(sums, count, static_cast<double>(means[row * width + lane]) - means[lane],
                    squares[row * width + lane]);
      }
      const ChannelSums all = combined(sums, slab.rows, means[lane]);
      for (int k = 0; k < 2; ++k)
        partials[slabs.partial(slab, k) + lane] = static_cast<float>(all.value[k]);
    }
  }

  /// Writes mean and M2 of the member's channels over its rows.
  KOKKOS_FUNCTION void add_up(const Slab& slab, const SlabPlace& place, float* mean,
                              float* m2) const {
    const std::int64_t stride = slabs.stride();
    const T* first =
        x + slab.offset + static_cast<std::int64_t>(place.row) * slabs.channels + place.lane;
    float shift[lanes], sum[lanes], square[lanes];
    load<lanes>(first, shift);
    for (int k = 0; k < lanes; ++k) sum[k] = square[k] = 0;
    const T* at = first;
    for_rows<batch>(place.row, slab.rows, slabs.height, [&](auto rows, int) {
      constexpr int count = decltype(rows)::value;
      float value[count][lanes];
      for (int j = 0; j < count; ++j) load<lanes>(at + j * stride, value[j]);
      at += count * stride;
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < lanes; ++k) {
          const float difference = value[j][k] - shift[k];
          sum[k] += difference;
          square[k] += difference * difference;
        }
      }
    });
    const float count =
                    static_cast<float>((slab.rows - place.row + slabs.height - 1) / slabs.height),
                inverse = 1.0f / count;
    for (int k = 0; k < lanes; ++k) {
      const float offset = sum[k] * inverse;
      square[k] -= offset * offset * count;
      shift[k] += offset;
    }
    store<lanes>(shift, mean);
    store<lanes>(square, m2);
  }
};

/// Second launch: channel_sums [segments, 2, channels] = mean and M2 of every channel over a
/// segment, from its chunks.
template <class Space>
struct SegmentStatistics {
  ChannelTeams teams;
  std::int64_t rows;
  int chunk_rows;
  const float* partials;
  double* channel_sums;

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int segment = team.league_rank() / teams.tiles;
    const float* of_segment =
        partials + static_cast<std::int64_t>(segment) * teams.count * 2 * teams.channels;
    double* out = channel_sums + static_cast<std::int64_t>(segment) * 2 * teams.channels;
    teams.run(
        team, team.league_rank() % teams.tiles,
        [&](int channel, int first, int step) {
          const double shift = of_segment[channel];
          ChannelSums sums;
          teams.for_partials(
              of_segment, channel, first, step, [&](int chunk, float mean, float m2) {
                const std::int64_t left = rows - static_cast<std::int64_t>(chunk) * chunk_rows;
                add_moments(sums, static_cast<double>(left < chunk_rows ? left : chunk_rows),
                            mean - shift, m2);
              });
          return sums;
        },
        [&](int channel, const ChannelSums& sums) {
          const ChannelSums all = combined(sums, static_cast<double>(rows), of_segment[channel]);
          for (int k = 0; k < 2; ++k) out[k * teams.channels + channel] = all.value[k];
        });
  }
};

}  // namespace trireme::kernels
