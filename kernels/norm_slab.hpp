#pragma once

// How the normalisations walk over x [segments, rows, channels] on a device. A column is a pack of
// `lanes` neighbouring channels, a slab a chunk of rows by a run of columns; a team takes it. Its
// members stand `width` columns side by side and `side` rows below each other. A member keeps its
// column, so that the channels' parameters and sums lie in registers, and goes down in steps of
// `side` rows with several rows' loads in flight; it adds some 64 numbers of a channel, which
// float32 bears. Members and chunks are added in double. Members are numbers, not threads: fewer
// threads take them in turn, and sums are the same.

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "launch.hpp"
#include "pack.hpp"
#include "trireme/kernels/normalization.hpp"

namespace trireme::kernels {

constexpr int slab_members = default_team_size;
constexpr int slab_columns = 32;  // 512 bytes of a row at once; eight rows below each other share a
                                  // partial sum, which then are below 1/100 of what is read

struct Slab {
  std::int64_t segment = 0;
  int chunk = 0, channel = 0;  ///< of x, and its first
  int channels = 0, rows = 0;
  std::int64_t offset = 0;  ///< of its first element in x
};

/// A member's place in a slab: its first row and its first channel.
struct SlabPlace {
  int row, lane;
};

template <int lanes>
struct Slabs {
  std::int64_t rows, segments;
  int channels, tiles, width, height, chunk_rows, chunks;

  explicit Slabs(const NormShape& shape)
      : rows(shape.rows), segments(shape.segments), channels(static_cast<int>(shape.channels)) {
    constexpr std::int64_t wanted_teams =
        1536;  // teams: three and more for each place of a device of some hundred multiprocessors
    constexpr std::int64_t max_numbers = 64,
                           unit = 8;  // of a channel that a member adds at most; a multiple of
                                      // which it takes, for the loads in flight
    const std::int64_t columns = shape.channels / lanes;
    tiles = static_cast<int>((columns + slab_columns - 1) / slab_columns);
    width = static_cast<int>((columns + tiles - 1) / tiles);
    height = slab_members / width;
    const std::int64_t min_steps =
        (norm_chunk_rows(shape) + height - 1) /
        height;  // so no more chunks than on the host, whose number is the workspace's
    std::int64_t steps =
        rows * tiles /
        (height * wanted_teams);  // not a matter of the segments: an image's sums are its own
    if (steps > max_numbers) steps = max_numbers;
    if (steps < min_steps) steps = min_steps;
    chunk_rows = static_cast<int>((steps + unit - 1) / unit * unit * height);
    chunks = static_cast<int>((rows + chunk_rows - 1) / chunk_rows);
  }

  std::int64_t count() const { return segments * chunks * tiles; }
  KOKKOS_FUNCTION int members() const { return width * height; }
  /// Elements between two rows of a member.
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
  /// Partial sum `which` (0 or 1) of the slab's first channel in partials [segments, chunks, 2,
  /// channels].
  KOKKOS_FUNCTION std::int64_t partial(const Slab& slab, int which) const {
    return ((slab.segment * chunks + slab.chunk) * 2 + which) * channels + slab.channel;
  }
};

/// run(member, place) for the members of a slab, each by one thread of the team.
template <class Team, int lanes, class Run>
KOKKOS_INLINE_FUNCTION void for_each_place(const Team& team, const Slabs<lanes>& slabs,
                                           const Slab& slab, const Run& run) {
  for (int member = team.team_rank(); member < slabs.members(); member += team.team_size()) {
    const SlabPlace place = slabs.place(member);
    if (place.lane < slab.channels) run(member, place);
  }
}

/// run(rows, row) for a member's rows first, first + step, ... below `end`: `batch` at a time, then
/// one by one. `rows` is a std::integral_constant.
template <int batch, class Run>
KOKKOS_INLINE_FUNCTION void for_rows(int first, int end, int step, const Run& run) {
  int row = first;
  for (; row + (batch - 1) * step < end; row += batch * step)
    run(std::integral_constant<int, batch>(), row);
  for (; row < end; row += step) run(std::integral_constant<int, 1>(), row);
}

/// A team's scratch memory, 16 bytes aligned.
template <class Number, class Team>
KOKKOS_INLINE_FUNCTION Number* team_scratch(const Team& team, int count) {
  return static_cast<Number*>(
      team.team_scratch(0).get_shmem_aligned(count * static_cast<int>(sizeof(Number)), pack_bytes));
}

/// A slab's parameters in a team's scratch memory: arrays of a number a channel.
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

/// functor(team) for `teams` teams of `threads`, of which a multiprocessor shall hold `together`:
/// that bounds their registers.
template <int threads, int together, class Space, class Functor>
void for_each_scratch_team(const Space& space, const std::string& label, std::int64_t teams,
                           int scratch_bytes, const Functor& functor) {
  Kokkos::TeamPolicy<Space, Kokkos::LaunchBounds<threads, together>> policy(
      space, static_cast<int>(teams), team_threads(space, threads));
  if (teams > 0)
    Kokkos::parallel_for(Label{label},
                         policy.set_scratch_size(
                             0, Kokkos::PerTeam(scratch_bytes + 2 * static_cast<int>(pack_bytes))),
                         functor);
}

/// What normalisation makes of x before an addition and the ReLU, to the same bits wherever it is
/// asked for.
KOKKOS_FORCEINLINE_FUNCTION float normalized(float centered, float scale, float bias) {
  return fmaf(centered, scale, bias);
}

/// Whether forward may leave a mask, a byte a pack: where the sum behind the ReLU cannot be made
/// again of x alone.
template <bool relu, bool add, int lanes>
constexpr bool may_write_mask = relu && add && lanes > 1;

/// The pack that begins with element `at`.
template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t pack_of(std::int64_t at) {
  return static_cast<std::uint64_t>(at) / lanes;
}

/// Bit k: value[k] > 0. (A constant is shifted: a shift of the comparison makes GCC 12 read outside
/// of `value` under -fsanitize=shift,bounds.)
template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION std::uint8_t positive_bits(const float (&value)[lanes]) {
  unsigned bits = 0;
  for (int k = 0; k < lanes; ++k) bits |= value[k] > 0 ? 1u << k : 0u;
  return static_cast<std::uint8_t>(bits);
}

/// run(lanes): packs where `fit` and the shape allows them.
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

/// How a team adds up the `count` rows of partial sums [count, 2, channels] for a run of channels:
/// `width` channels side by side, `side` rows, each with eight rows' loads in flight.
struct ChannelTeams {
  static constexpr int members = 512, batch = 8;
  int channels, count, height, width, tiles;

  ChannelTeams(std::int64_t all_channels, std::int64_t rows)
      : channels(static_cast<int>(all_channels)), count(static_cast<int>(rows)) {
    constexpr int max_height = 128;  // leaves four channels, half a sector of memory
    height = 1;
    while (height < max_height && height * batch < count) height *= 2;
    width = members / height;
    tiles = (channels + width - 1) / width;
  }
  static constexpr int scratch_bytes() { return members * static_cast<int>(sizeof(ChannelSums)); }

  /// finish(channel, sum over rows of walk(channel, first, step)); `walk` takes the rows first,
  /// first + step, ...
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

  /// The two sums of those rows.
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
  /// add(row, first sum, second sum) for the rows first, first + step, ... of a channel's partial
  /// sums.
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
