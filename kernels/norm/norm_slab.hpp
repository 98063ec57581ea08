// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the normalizations walk over x [segments, rows, channels] on a device (host: norm_tile.hpp).
// A column is a pack of `lanes` neighboring channels. A team takes a slab, which is a chunk of rows
// by a range of columns:
//
//               columns ->   width = 4
//   rows   0    m0  m1  m2  m3      each member keeps its column: the channels' parameters
//    |     1    m4  m5  m6  m7      and sums stay in registers
//    v     2    m0  m1  m2  m3      and steps down by `height` rows (here 2),
//          3    m4  m5  m6  m7      with the loads of several rows in flight
//
// A member adds about 64 numbers per channel in float32, which keeps the error small. Members and
// chunks are added in double.
// Members are indices, not threads: fewer threads take several members each, and the sums are the
// same.

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/space/launch.hpp"
#include "kernels/space/pack.hpp"
#include "trireme/kernels/norm/normalization.hpp"

namespace trireme::kernels {

constexpr int slab_members = default_team_size;
// 512 bytes of a row per access. Eight or more rows share a partial sum, so that writing the
// partial sums costs below 1/100 of reading x.
constexpr int slab_columns = 32;

/// One team's part of x.
struct Slab {
  std::int64_t segment = 0;
  /// chunk of rows, and first channel
  int chunk = 0, channel = 0;
  int channels = 0, rows = 0;
  /// index of its first element in x
  std::int64_t offset = 0;
};

/// Start of a member in its slab: its first row and its first channel.
struct SlabPlace {
  int row, lane;
};

/// The partition of x into slabs, a function of the shape alone.
template <int lanes>
struct Slabs {
  std::int64_t rows, segments;
  int channels, tiles, width, height, chunk_rows, chunks;

  explicit Slabs(const NormShape& shape)
      : rows(shape.rows), segments(shape.segments), channels(static_cast<int>(shape.channels)) {
    // Number of teams: at least three times as many as a device of about a hundred multiprocessors
    // holds at once.
    constexpr std::int64_t wanted_teams = 1536;
    constexpr std::int64_t max_numbers = 64,
                           // max_numbers: numbers of a channel that a member adds, at most. unit:
                           // steps are a multiple of it, for the loads in flight.
        unit = 8;
    const std::int64_t columns = shape.channels / lanes;
    tiles = static_cast<int>((columns + slab_columns - 1) / slab_columns);
    width = static_cast<int>((columns + tiles - 1) / tiles);
    height = slab_members / width;
    // At least as many rows per chunk as on the host, whose number of chunks sizes the workspace.
    const std::int64_t min_steps = (norm_chunk_rows(shape) + height - 1) / height;
    // Independent of the number of segments, so that the sums of an image do not depend on its
    // batch.
    std::int64_t steps = rows * tiles / (height * wanted_teams);
    if (steps > max_numbers) steps = max_numbers;
    if (steps < min_steps) steps = min_steps;
    chunk_rows = static_cast<int>((steps + unit - 1) / unit * unit * height);
    chunks = static_cast<int>((rows + chunk_rows - 1) / chunk_rows);
  }

  std::int64_t count() const { return segments * chunks * tiles; }
  KOKKOS_FUNCTION int members() const { return width * height; }
  /// Returns the elements between two successive rows of a member.
  KOKKOS_FUNCTION std::int64_t stride() const {
    return static_cast<std::int64_t>(height) * channels;
  }
  KOKKOS_FUNCTION int width_in_channels() const { return width * lanes; }
  KOKKOS_FUNCTION int rows_of(int chunk) const {
    const std::int64_t left = rows - static_cast<std::int64_t>(chunk) * chunk_rows;
    return static_cast<int>(left < chunk_rows ? left : chunk_rows);
  }
  KOKKOS_FUNCTION Slab operator[](int index) const {
    Slab slab;
    const int tile = index % tiles, chunk_and_segment = index / tiles;
    slab.chunk = chunk_and_segment % chunks;
    slab.segment = chunk_and_segment / chunks;
    slab.channel = tile * width * lanes;
    slab.channels =
        channels - slab.channel < width * lanes ? channels - slab.channel : width * lanes;
    slab.rows = rows_of(slab.chunk);
    slab.offset =
        (slab.segment * rows + static_cast<std::int64_t>(slab.chunk) * chunk_rows) * channels +
        slab.channel;
    return slab;
  }
  KOKKOS_FUNCTION SlabPlace place(int member) const {
    return {member / width, member % width * lanes};
  }
  /// Returns the index of partial sum `which` (0 or 1) of the slab's first channel in partials
  /// [segments, chunks, 2, channels].
  KOKKOS_FUNCTION std::int64_t partial(const Slab& slab, int which) const {
    return ((slab.segment * chunks + slab.chunk) * 2 + which) * channels + slab.channel;
  }
};

/// Calls run(member, place) for all members of a slab, each by one thread of the team.
template <class Team, int lanes, class Run>
KOKKOS_INLINE_FUNCTION void for_each_place(const Team& team, const Slabs<lanes>& slabs,
                                           const Slab& slab, const Run& run) {
  for (int member = team.team_rank(); member < slabs.members(); member += team.team_size()) {
    const SlabPlace place = slabs.place(member);
    if (place.lane < slab.channels) run(member, place);
  }
}

/// Calls run(rows, row) for a member's rows first, first + step, ... below `end`: `batch` at a
/// time, then one by one. `rows` is a std::integral_constant.
template <int batch, class Run>
KOKKOS_INLINE_FUNCTION void for_rows(int first, int end, int step, const Run& run) {
  int row = first;
  for (; row + (batch - 1) * step < end; row += batch * step)
    run(std::integral_constant<int, batch>(), row);
  for (; row < end; row += step) run(std::integral_constant<int, 1>(), row);
}

/// Returns the team's scratch memory, aligned to 16 bytes.
template <class Number, class Team>
KOKKOS_INLINE_FUNCTION Number* team_scratch(const Team& team, int count) {
  return static_cast<Number*>(
      team.team_scratch(0).get_shmem_aligned(count * static_cast<int>(sizeof(Number)), pack_bytes));
}

/// Parameters of a slab's channels in the team's scratch memory: `count` arrays with one number per
/// channel.
template <int lanes, int count>
struct SlabParameters {
  static constexpr int capacity = slab_columns * lanes;
  float* first;

  template <class Team>
  KOKKOS_FUNCTION explicit SlabParameters(const Team& team)
      : first(team_scratch<float>(team, count * capacity)) {}
  static constexpr int bytes() { return count * capacity * static_cast<int>(sizeof(float)); }
  KOKKOS_FUNCTION float& operator()(int parameter, int lane) const {
    return first[parameter * capacity + lane];
  }
};

/// Enqueues functor(team) for `teams` teams of `threads`. At least `together` teams must fit on one
/// multiprocessor, which limits their registers.
template <int threads, int together, class Space, class Functor>
void for_each_scratch_team(const Space& space, const std::string& label, std::int64_t teams,
                           int scratch_bytes, const Functor& functor) {
  Kokkos::TeamPolicy<Space, Kokkos::LaunchBounds<threads, together>> policy(
      space, static_cast<int>(teams), team_threads(space, threads));
  if (teams > 0)
    enqueue(label,
            policy.set_scratch_size(
                0, Kokkos::PerTeam(scratch_bytes + 2 * static_cast<int>(pack_bytes))),
            functor);
}

/// Returns the normalized value before addition and ReLU. Forward and backward call it, so both get
/// the same bits.
KOKKOS_FORCEINLINE_FUNCTION float normalized(float centered, float scale, float bias) {
  return fmaf(centered, scale, bias);
}

/// True if forward can write a ReLU mask, one byte per pack. Needed only behind an addition:
/// without one, backward recomputes the sign from x.
template <bool relu, bool add, int lanes>
constexpr bool may_write_mask = relu && add && lanes > 1;

/// Returns the index of the pack that begins at element `at`.
template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t pack_of(std::int64_t at) {
  return static_cast<std::uint64_t>(at) / lanes;
}

/// Returns a byte whose bit k is set if value[k] > 0. A constant is shifted, because GCC 12 reads
/// outside of `value` under -fsanitize=shift,bounds if the comparison is shifted.
template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION std::uint8_t positive_bits(const float (&value)[lanes]) {
  unsigned bits = 0;
  for (int k = 0; k < lanes; ++k) bits |= value[k] > 0 ? 1u << k : 0u;
  return static_cast<std::uint8_t>(bits);
}

/// Calls run(lanes) with the lanes of a pack if `fit` and the shape permit packs, else with 1.
template <class T, class Run>
void with_lanes(const NormShape& shape, bool fit, const Run& run) {
  if (fit && shape.channels % pack_lanes<T> == 0) {
    run(std::integral_constant<int, pack_lanes<T>>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

/// Two sums of a channel.
struct ChannelSums {
  double value[2] = {0, 0};
};

/// How a team adds the `count` rows of partial sums [count, 2, channels] for a range of channels:
/// `width` channels side by side by `height` rows, with the loads of eight rows in flight per
/// member.
struct ChannelTeams {
  static constexpr int members = 512, batch = 8;
  int channels, count, height, width, tiles;

  ChannelTeams(std::int64_t all_channels, std::int64_t rows)
      : channels(static_cast<int>(all_channels)), count(static_cast<int>(rows)) {
    // Leaves four channels, half a memory sector.
    constexpr int max_height = 128;
    height = 1;
    while (height < max_height && height * batch < count) height *= 2;
    width = members / height;
    tiles = (channels + width - 1) / width;
  }
  static constexpr int scratch_bytes() { return members * static_cast<int>(sizeof(ChannelSums)); }

  /// Calls finish(channel, sums) with the sum over members of walk(channel, first, step), which
  /// adds the rows first, first + step, ...
  template <class Team, class Walk, class Finish>
  KOKKOS_INLINE_FUNCTION void run(const Team& team, int tile, const Walk& walk,
                                  const Finish& finish) const {
    ChannelSums* sums = team_scratch<ChannelSums>(team, members);
    const int first = tile * width, threads = team.team_size();
    for (int member = team.team_rank(); member < members; member += threads) {
      const int channel = first + member % width;
      sums[member] = channel < channels ? walk(channel, member / width, height) : ChannelSums();
    }
    for (int half = height / 2; half > 0; half /= 2) {
      team.team_barrier();
      for (int member = team.team_rank(); member < half * width; member += threads) {
        for (int k = 0; k < 2; ++k) sums[member].value[k] += sums[member + half * width].value[k];
      }
    }
    team.team_barrier();
    for (int member = team.team_rank(); member < width && first + member < channels;
         member += threads)
      finish(first + member, sums[member]);
  }

  /// Returns the two sums of the rows first, first + step, ...
  template <class Number>
  KOKKOS_INLINE_FUNCTION ChannelSums sum(const Number* sums, int channel, int first,
                                         int step) const {
    ChannelSums total;
    for_partials(sums, channel, first, step, [&](int, double a, double b) {
      total.value[0] += a;
      total.value[1] += b;
    });
    return total;
  }
  /// Calls add(row, first sum, second sum) for the rows first, first + step, ... of a channel's
  /// partial sums.
  template <class Number, class Add>
  KOKKOS_INLINE_FUNCTION void for_partials(const Number* sums, int channel, int first, int step,
                                           const Add& add) const {
    for (int row = first; row < count; row += batch * step) {
      Number value[batch][2];
      for (int j = 0; j < batch; ++j) {
        const Number* at =
            sums + static_cast<std::int64_t>(row + j * step) * 2 * channels + channel;
        const bool inside = row + j * step < count;
        value[j][0] = inside ? at[0] : 0;
        value[j][1] = inside ? at[channels] : 0;
      }
      for (int j = 0; j < batch; ++j) {
        if (row + j * step < count) add(row + j * step, value[j][0], value[j][1]);
      }
    }
  }
};

}  // namespace trireme::kernels
