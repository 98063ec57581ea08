// SPDX-License-Identifier: Apache-2.0
//
// Scales and codes of float8 operands. Called by src/ops/float8.cpp before a product with float8
// operands.
//
//   1  float8_pieces   a group per part   maximum of |x| in each part
//   2  float8_scale    one group          their maximum, then the scale; a maximum has no order
//   3  float8_cast     codes as stored,   or float8_turn: codes of the transposed matrix
//
// A transposed tile is built in a team's scratch memory. A thread computes the codes of 4 x 4
// numbers and stores the four of each column as one word; then it writes 16 codes of one column.
// Memory traffic per number: 2 bytes for the scale, 3 bytes for the codes.

#include "trireme/kernels/float8.hpp"

#include <cmath>

#include "kernels/norm/norm_slab.hpp"
#include "kernels/space/elements.hpp"
#include "kernels/space/row_group.hpp"

namespace trireme::kernels {
namespace {

const std::string pieces_label = "trireme/kernels/float8_pieces";
const std::string scale_label = "trireme/kernels/float8_scale";
const std::string cast_label = "trireme/kernels/float8_cast";
const std::string transpose_label = "trireme/kernels/float8_turn";
const std::string round_label = "trireme/kernels/float8_round";

/// Returns |x|, or infinity for a NaN.
KOKKOS_FORCEINLINE_FUNCTION float magnitude(BFloat16 x) {
  const std::uint32_t bits = x.bits & 0x7FFFu;
  return float_of_bits((bits < 0x7F80u ? bits : 0x7F80u) << 16);
}

/// Maximum magnitude of each part of x.
template <int lanes>
struct Pieces {
  Float8ScaleArgs args;
  /// numbers per part, a multiple of lanes
  std::int64_t part_elements;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t piece, const Group& group) const {
    const std::int64_t begin = piece * part_elements, left = args.count - begin,
                       count = left < part_elements ? left : part_elements;
    const BFloat16* const x = args.x + begin;
    float largest = 0;
    if constexpr (std::is_same_v<Group, HostGroup>) {
      largest = group.largest(count, [&](std::int64_t i) { return magnitude(x[i]); });
    } else {
      constexpr int batch = 4;
      const std::int64_t packs = count / lanes, step = group.step();
      std::int64_t i = group.first();
      for (; i + (batch - 1) * step < packs; i += batch * step) process<batch>(x, i, step, largest);
      TRIREME_ROLLED
      for (; i < packs; i += step) process<1>(x, i, step, largest);
      largest = group.largest_of(largest);
    }
    if (group.is_leader()) args.maxima[piece] = largest;
  }

 private:
  /// Takes the maximum over the packs pack, pack + step, ... of x.
  template <int packs>
  KOKKOS_FORCEINLINE_FUNCTION static void process(const BFloat16* x, std::int64_t pack,
                                                  std::int64_t step, float& largest) {
    float value[packs][lanes];
    for (int j = 0; j < packs; ++j) load<lanes>(x + (pack + j * step) * lanes, value[j]);
    for (int j = 0; j < packs; ++j) {
      for (int k = 0; k < lanes; ++k) {
        const float other = fabsf(value[j][k]);
        // A NaN fails both comparisons and becomes infinity.
        largest = other <= largest ? largest : other < INFINITY ? other : INFINITY;
      }
    }
  }
};

template <class T>
struct ScaleOf {
  const float* maxima;
  std::int64_t pieces;
  Float8Scale* scale;

  KOKKOS_FUNCTION static int exponent(std::uint32_t bits) {
    return static_cast<int>(bits >> 23) - 127;
  }
  /// Returns the scale for this maximum. With T's largest number and `largest` written as m * 2^e,
  /// its exponent is the difference of the two e, less one if the m of `largest` is larger.
  KOKKOS_FUNCTION static Float8Scale of(float largest) {
    // so that both powers of two are normal numbers
    constexpr int limit = 126;
    if (!(largest > 0 && largest < INFINITY)) return {1, 1};
    const std::uint32_t greatest =
                            bits_of_float(to_float(T{static_cast<std::uint8_t>(T::greatest)})),
                        bits = bits_of_float(largest);
    int power =
        exponent(greatest) - exponent(bits) - ((bits & 0x7FFFFFu) > (greatest & 0x7FFFFFu) ? 1 : 0);
    power = power > limit ? limit : power < -limit ? -limit : power;
    return {float_of_bits(static_cast<std::uint32_t>(127 - power) << 23),
            float_of_bits(static_cast<std::uint32_t>(127 + power) << 23)};
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    float largest = 0;
    if constexpr (std::is_same_v<Group, HostGroup>) {
      largest = group.largest(pieces, [&](std::int64_t i) { return maxima[i]; });
    } else {
      for (std::int64_t i = group.first(); i < pieces; i += group.step())
        largest = maxima[i] > largest ? maxima[i] : largest;
      largest = group.largest_of(largest);
    }
    if (group.is_leader()) *scale = of(largest);
  }
};

/// Codes in the order of x: a vector in pieces on the host, a matrix with rows of warp_packs packs
/// on a device.
template <class T>
struct Cast {
  Float8Cast args;
  std::int64_t count;
  static constexpr int lanes = 16, rows_at_once = 2;
  static constexpr std::int64_t width = warp_packs * lanes;

  bool packed() const { return packs_fit(args.x, static_cast<const T*>(args.codes)); }
  KOKKOS_FUNCTION T* codes() const { return static_cast<T*>(args.codes); }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = count - piece * piece_elements;
    return left < piece_elements ? left : piece_elements;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const float scale = args.scale->scale;
    const BFloat16* const from = args.x + piece * piece_elements;
    T* const to = codes() + piece * piece_elements;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) to[i] = to_float8<T>(to_float(from[i]) * scale);
  }

  template <int rows, int pack>
  KOKKOS_FORCEINLINE_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    const float scale = args.scale->scale;
    const std::int64_t at = row * width + column;
    float value[rows][pack];
    for (int j = 0; j < rows; ++j) load<pack>(args.x + at + j * width, value[j]);
    for (int j = 0; j < rows; ++j) {
      if constexpr (pack == lanes) {
        PackWords words;
        for (int k = 0; k < 4; ++k) {
          const float* const four = value[j] + 4 * k;
          words.word[k] = pack_float8_pair<T>(four[0] * scale, four[1] * scale) |
                          pack_float8_pair<T>(four[2] * scale, four[3] * scale) << 16;
        }
        write_words(words, codes() + at + j * width);
      } else {
        for (int k = 0; k < pack; ++k)
          codes()[at + j * width + k] = {
              static_cast<std::uint8_t>(pack_float8_pair<T>(value[j][k] * scale, 0))};
      }
    }
  }
};

/// Rows and columns of a matrix to transpose are multiples of it.
constexpr std::int64_t unit = 16;

/// Host form: a piece is `unit` columns.
template <class T>
struct TransposeColumns {
  Float8Cast args;
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return args.rows; }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const float scale = args.scale->scale;
    T* const to = static_cast<T*>(args.codes) + piece * unit * args.rows;
    for (std::int64_t row = begin; row < end; ++row) {
      const BFloat16* const from = args.x + row * args.columns + piece * unit;
      for (std::int64_t k = 0; k < unit; ++k)
        to[k * args.rows + row] = to_float8<T>(to_float(from[k]) * scale);
    }
  }
};

/// Device form: a tile per team.
template <class Space, class T>
struct TransposeTiles {
  Float8Cast args;
  static constexpr int side = 64, words = side / 4, pitch = words + 1, members = words * words;
  static_assert(members == default_team_size && side % unit == 0);
  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes() {
    return side * pitch * static_cast<int>(sizeof(std::uint32_t));
  }
  KOKKOS_FUNCTION std::int64_t across() const { return (args.columns + side - 1) / side; }
  std::int64_t count() const { return across() * ((args.rows + side - 1) / side); }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    // [columns, words of four rows]
    std::uint32_t* const tile = team_scratch<std::uint32_t>(team, side * pitch);
    const int tiles_across = static_cast<int>(across());
    const std::int64_t first_row = std::int64_t{team.league_rank() / tiles_across} * side,
                       first_column = std::int64_t{team.league_rank() % tiles_across} * side;
    for (int member = team.team_rank(); member < members; member += team.team_size())
      read(tile, first_row, first_column, member / words, member % words);
    team.team_barrier();
    for (int member = team.team_rank(); member < members; member += team.team_size()) {
      const int column = member / 4, part = member % 4;
      if (first_column + column >= args.columns || first_row + part * unit >= args.rows) continue;
      PackWords codes;
      for (int k = 0; k < 4; ++k) codes.word[k] = tile[column * pitch + part * 4 + k];
      write_words(codes, static_cast<T*>(args.codes) + (first_column + column) * args.rows +
                             first_row + part * unit);
    }
  }

  /// Stores the codes of the 4 x 4 numbers at row 4 * `down`, column 4 * `right` of the tile.
  KOKKOS_FORCEINLINE_FUNCTION void read(std::uint32_t* tile, std::int64_t first_row,
                                        std::int64_t first_column, int down, int right) const {
    const std::int64_t row = first_row + 4 * down, column = first_column + 4 * right;
    if (row >= args.rows || column >= args.columns) return;
    const float scale = args.scale->scale;
    float value[4][4];
    for (int j = 0; j < 4; ++j) load<4>(args.x + (row + j) * args.columns + column, value[j]);
    for (int k = 0; k < 4; ++k) {
      tile[(4 * right + k) * pitch + down] =
          pack_float8_pair<T>(value[0][k] * scale, value[1][k] * scale) |
          pack_float8_pair<T>(value[2][k] * scale, value[3][k] * scale) << 16;
    }
  }
};

template <class T>
struct RoundNumber {
  const Float8Scale* scale;
  KOKKOS_FUNCTION float operator()(float x) const {
    return float8_to_float(to_float8<T>(x * scale->scale)) * scale->inverse;
  }
};

}  // namespace

template <class T>
void float8_scale(const Stream& stream, const Float8ScaleArgs& args) {
  dispatch(stream, [=]<class Space>(const Space& space) {
    constexpr int lanes = pack_lanes<BFloat16>;
    const std::int64_t min_elements =
        on_host<Space> ? piece_elements : 2 * default_team_size * lanes;
    std::int64_t part_elements = (args.count + float8_partial_maxima - 1) / float8_partial_maxima;
    part_elements =
        ((part_elements > min_elements ? part_elements : min_elements) + lanes - 1) / lanes * lanes;
    const std::int64_t pieces = (args.count + part_elements - 1) / part_elements;
    if (packs_fit(args.x) && args.count % lanes == 0)
      for_each_group(space, pieces_label, pieces, Pieces<lanes>{args, part_elements});
    else
      for_each_group(space, pieces_label, pieces, Pieces<1>{args, part_elements});
    for_each_group(space, scale_label, 1, ScaleOf<T>{args.maxima, pieces, args.scale});
  });
}

template <class T>
void float8_cast(const Stream& stream, const Float8Cast& args) {
  dispatch(stream, [=]<class Space>(const Space& space) {
    if (args.transposed) {
      if constexpr (on_host<Space>) {
        for_each_piece(space, transpose_label, args.columns / unit, TransposeColumns<T>{args});
      } else {
        using Tiles = TransposeTiles<Space, T>;
        const Tiles tiles{args};
        for_each_scratch_team<Tiles::members, 4>(space, transpose_label, tiles.count(),
                                                 Tiles::scratch_bytes(), tiles);
      }
      return;
    }
    const Cast<T> cast{args, args.rows * args.columns};
    if constexpr (on_host<Space>) {
      for_each_piece(space, cast_label, (cast.count + piece_elements - 1) / piece_elements, cast);
    } else {
      constexpr std::int64_t width = Cast<T>::width;
      const std::int64_t rows = cast.count / width, rest = cast.count % width;
      cast.packed() ? for_each_pack<Cast<T>::lanes>(space, cast_label, rows, warp_packs, rest, cast)
                    : for_each_pack<1>(space, cast_label, rows, width, rest, cast);
    }
  });
}

template <class T>
void float8_round(const Stream& stream, const Float8Round& args) {
  for_each_element(stream, round_label, args.count, RoundNumber<T>{args.scale}, std::tuple(args.y),
                   std::tuple(args.x));
}

template void float8_scale<Float8E4M3>(const Stream&, const Float8ScaleArgs&);
template void float8_scale<Float8E5M2>(const Stream&, const Float8ScaleArgs&);
template void float8_cast<Float8E4M3>(const Stream&, const Float8Cast&);
template void float8_cast<Float8E5M2>(const Stream&, const Float8Cast&);
template void float8_round<Float8E4M3>(const Stream&, const Float8Round&);
template void float8_round<Float8E5M2>(const Stream&, const Float8Round&);

}  // namespace trireme::kernels
