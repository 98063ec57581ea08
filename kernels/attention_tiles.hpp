// SPDX-License-Identifier: Apache-2.0
#pragma once

// Building blocks of the attention kernels: tiles in a team's scratch memory (on a device: shared
// memory), and loops in which a team fills, multiplies and stores them. On the host a team is one
// thread and runs the same steps.

#include <cmath>

#include "kernels/space/launch.hpp"
#include "kernels/space/vector_math.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/attention.hpp"

namespace trireme::kernels {

/// float32 rows in scratch memory. Each row has one unused number at its end, so that threads that
/// read a column access different banks.
struct ScratchTile {
  float* data = nullptr;
  int stride = 0;
  static constexpr std::size_t bytes(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns + 1) * sizeof(float);
  }
};

/// Allocates tiles from a team's scratch memory, one after the other.
class ScratchAllocator {
 public:
  KOKKOS_FUNCTION explicit ScratchAllocator(float* memory) : memory_(memory) {}
  KOKKOS_FUNCTION ScratchTile allocate(int rows, int columns) {
    const ScratchTile tile{memory_, columns + 1};
    memory_ += rows * (columns + 1);
    return tile;
  }
  KOKKOS_FUNCTION float* allocate_floats(int count) {
    float* const numbers = memory_;
    memory_ += count;
    return numbers;
  }

 private:
  float* memory_;
};

/// A matrix as an operand of multiply(): element (i, j) is data[i * row + j * column].
struct Operand {
  const float* data;
  int row, column;
};
KOKKOS_INLINE_FUNCTION Operand as_stored(const ScratchTile& tile) {
  return {tile.data, tile.stride, 1};
}
KOKKOS_INLINE_FUNCTION Operand transposed(const ScratchTile& tile) {
  return {tile.data, 1, tile.stride};
}

/// Rows of one head in device or host memory: `count` rows of `width` numbers, `stride` apart.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;
  int count, width;
};

/// Returns the rows of positions [first, first + most) of a sequence, as far as they exist.
template <class T>
KOKKOS_INLINE_FUNCTION HeadRows<T> head_rows(const AttentionShape& a, T* tensor,
                                             std::int64_t tensor_width, std::int64_t column,
                                             std::int64_t sequence, std::int64_t first, int most) {
  const std::int64_t left = a.context - first;
  return {tensor + (sequence * a.context + first) * tensor_width + column, tensor_width,
          left < most ? static_cast<int>(left) : most, static_cast<int>(a.head_width)};
}

KOKKOS_INLINE_FUNCTION std::int64_t queries(const AttentionShape& a) {
  return a.context - a.first_query;
}
/// The same for a tensor that has a row for each query only.
template <class T>
KOKKOS_INLINE_FUNCTION HeadRows<T> query_rows(const AttentionShape& a, T* tensor,
                                              std::int64_t tensor_width, std::int64_t column,
                                              std::int64_t sequence, std::int64_t first, int most) {
  const std::int64_t row = sequence * queries(a) + first - a.first_query, left = a.context - first;
  return {tensor + row * tensor_width + column, tensor_width,
          left < most ? static_cast<int>(left) : most, static_cast<int>(a.head_width)};
}

/// Returns the end of the keys that the queries before position `end` see.
KOKKOS_INLINE_FUNCTION std::int64_t key_end(const AttentionShape& a, std::int64_t end) {
  return a.mask == AttentionMask::causal && end < a.context ? end : a.context;
}

KOKKOS_INLINE_FUNCTION std::int64_t qkv_width(const AttentionShape& a) {
  return (a.heads + 2 * a.kv_heads) * a.head_width;
}
KOKKOS_INLINE_FUNCTION std::int64_t out_width(const AttentionShape& a) {
  return a.heads * a.head_width;
}
/// Return the first column of a head's keys, or values, in qkv.
KOKKOS_INLINE_FUNCTION std::int64_t k_column(const AttentionShape& a, std::int64_t kv_head) {
  return (a.heads + kv_head) * a.head_width;
}
KOKKOS_INLINE_FUNCTION std::int64_t v_column(const AttentionShape& a, std::int64_t kv_head) {
  return k_column(a, kv_head) + a.kv_heads * a.head_width;
}
KOKKOS_INLINE_FUNCTION float score_scale(const AttentionShape& a) {
  return 1.0f / sqrtf(static_cast<float>(a.head_width));
}

/// tile = value.
template <class Member>
KOKKOS_INLINE_FUNCTION void fill_tile(const Member& team, const ScratchTile& tile, int rows,
                                      int columns, float value) {
  for (int i = team.team_rank(); i < rows * (columns + 1); i += team.team_size())
    tile.data[i] = value;
}

/// tile = rows in float32; zeros for rows that do not exist.
template <class Member, class T>
KOKKOS_INLINE_FUNCTION void load_tile(const Member& team, const HeadRows<T>& rows,
                                      const ScratchTile& tile, int tile_rows) {
  for (int i = team.team_rank(); i < tile_rows * rows.width; i += team.team_size()) {
    const int r = i / rows.width, c = i - r * rows.width;
    tile.data[r * tile.stride + c] =
        r < rows.count ? to_float(rows.data[r * rows.stride + c]) : 0.0f;
  }
}

/// rows = tile * factor(row), rounded to T.
template <class Member, class T, class Factor>
KOKKOS_INLINE_FUNCTION void store_tile(const Member& team, const ScratchTile& tile,
                                       const HeadRows<T>& rows, const Factor& factor) {
  for (int i = team.team_rank(); i < rows.count * rows.width; i += team.team_size()) {
    const int r = i / rows.width, c = i - r * rows.width;
    rows.data[r * rows.stride + c] = from_float<T>(tile.data[r * tile.stride + c] * factor(r));
  }
}

/// c [rows, columns] = before.of(c, row) + the product a b over `depth`.
/// A thread computes blocks of 4 x 2 sums. Its rows and columns are apart, so that neighboring
/// threads have neighboring columns. Every sum runs over `depth` in order.
template <class Member, class Before>
KOKKOS_INLINE_FUNCTION void multiply(const Member& team, int rows, int columns, int depth,
                                     const Operand& a, const Operand& b, const ScratchTile& c,
                                     const Before& before) {
  constexpr int block_rows = 4, block_columns = 2;
  const int row_step = (rows + block_rows - 1) / block_rows,
            column_step = (columns + block_columns - 1) / block_columns;
  for (int block = team.team_rank(); block < row_step * column_step; block += team.team_size()) {
    const int row = block / column_step, column = block - row * column_step;
    int row_at[block_rows], column_at[block_columns];
    for (int i = 0; i < block_rows; ++i)
      row_at[i] = row + i * row_step < rows ? row + i * row_step : rows - 1;
    for (int j = 0; j < block_columns; ++j)
      column_at[j] = column + j * column_step < columns ? column + j * column_step : columns - 1;
    float sum[block_rows][block_columns] = {};
    for (int k = 0; k < depth; ++k) {
      float left[block_rows], right[block_columns];
      for (int i = 0; i < block_rows; ++i) left[i] = a.data[row_at[i] * a.row + k * a.column];
      for (int j = 0; j < block_columns; ++j)
        right[j] = b.data[k * b.row + column_at[j] * b.column];
      for (int i = 0; i < block_rows; ++i)
        for (int j = 0; j < block_columns; ++j) sum[i][j] += left[i] * right[j];
    }
    for (int i = 0; i < block_rows; ++i) {
      for (int j = 0; j < block_columns; ++j) {
        if (row + i * row_step >= rows || column + j * column_step >= columns) continue;
        float& result = c.data[row_at[i] * c.stride + column_at[j]];
        result = before.of(result, row_at[i]) + sum[i][j];
      }
    }
  }
}

/// How multiply() uses the value that c had: Overwrite, Accumulate, or ScaleAndAccumulate with a
/// factor per row.
struct Overwrite {
  KOKKOS_FUNCTION float of(float, int) const { return 0.0f; }
};
struct Accumulate {
  KOKKOS_FUNCTION float of(float before, int) const { return before; }
};
struct ScaleAndAccumulate {
  /// of each row
  const float* factor;
  KOKKOS_FUNCTION float of(float before, int row) const { return before * factor[row]; }
};

/// Dropout factors of the probabilities of one row: 0 or 1 / (1 - p). It keeps the last four random
/// words, so calls with consecutive k share one Philox call.
class DropoutFactor {
 public:
  KOKKOS_FUNCTION DropoutFactor(const AttentionShape& a, std::int64_t sequence, std::int64_t head,
                                std::int64_t q)
      : probability_(a.dropout),
        scale_(1.0f / (1.0f - a.dropout)),
        first_(static_cast<std::uint64_t>(((a.first_head + head) * a.context + q) * a.context)) {
    if (probability_ > 0) key_ = mix64(a.key ^ a.sample_keys[sequence]);
  }
  KOKKOS_FUNCTION float operator()(std::int64_t k) {
    if (probability_ <= 0) return 1.0f;
    const std::uint64_t element = first_ + static_cast<std::uint64_t>(k), counter = element / 4;
    if (counter != counter_) words_ = philox(key_, counter, 0);
    counter_ = counter;
    return uniform_unit(words_.word[element % 4]) >= probability_ ? scale_ : 0.0f;
  }

 private:
  float probability_, scale_;
  std::uint64_t first_, key_ = 0, counter_ = ~std::uint64_t{0};
  RandomWords words_{};
};

/// Tile sizes: rows that a team owns (queries, or keys), and rows of the other side that it loops
/// over.
struct TileSizes {
  int own, other;
};

/// Threads per team on a device, and the scratch memory that a tile set may use: 48 KiB, which
/// every device grants without a special request, less the part that Kokkos uses.
constexpr int attention_threads = 128;
constexpr std::size_t scratch_limit = std::size_t{44} << 10;

/// Returns Kokkos' scratch level to use. On the host all levels are the same memory, but Kokkos 5
/// limits level 0 to 32 KiB per team.
template <class Space>
KOKKOS_FUNCTION constexpr int scratch_level() {
  return on_host<Space> ? 1 : 0;
}

/// Returns the largest sizes whose bytes(sizes) fit in scratch_limit. Throws Failure if none fit.
template <class Bytes>
TileSizes tile_sizes(const Bytes& bytes) {
  for (const TileSizes sizes :
       {TileSizes{32, 32}, {32, 16}, {16, 16}, {16, 8}, {8, 8}, {4, 4}, {1, 1}}) {
    if (bytes(sizes) <= scratch_limit) return sizes;
  }
  throw Failure(
      "attention heads are too wide: their tiles exceed the scratch memory of a team; use narrower "
      "heads (at most 1875 numbers each to train)");
}

/// Enqueues functor(team) for `teams` teams with `scratch_bytes` of scratch memory each.
template <class Space, class Functor>
void for_each_team(const Space& space, const std::string& label, std::int64_t teams,
                   std::size_t scratch_bytes, const Functor& functor) {
  if (teams <= 0) return;
  Kokkos::TeamPolicy<Space> policy(space, static_cast<int>(teams),
                                   on_host<Space> ? 1 : team_threads(space, attention_threads));
  enqueue(label,
          policy.set_scratch_size(scratch_level<Space>(),
                                  Kokkos::PerTeam(static_cast<int>(scratch_bytes) + 64)),
          functor);
}

}  // namespace trireme::kernels
