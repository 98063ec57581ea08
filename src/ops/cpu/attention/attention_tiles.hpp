// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts that both passes of attention on the CPU share: rows and columns of heads, pairs of tiles
// with their mask, dropout of a pair, tasks of threads, and the choice of products.
//
// Tiles are padded with zeros. A padded key gets the score -infinity, so it has no probability. A
// padded query has no gradient.
//
// With the causal mask a block sees the key tiles up to itself. Of those, only a tile with the same
// positions (on the diagonal) has keys that some of its queries do not see.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention_amx.hpp"
#include "attention_bfloat16.hpp"
#include "attention_dropout.hpp"
#include "attention_products.hpp"
#include "attention_scratch.hpp"
#include "trireme/ops/attention.hpp"

namespace trireme::ops::cpu {

constexpr int block_tiles = 4;  // tiles of queries that share a loaded tile of keys

inline float score_scale(const Attention& a) {
  return 1.0f / std::sqrt(static_cast<float>(a.head_width));
}

// Numbers of tiles of queries in a sequence, and of blocks of tiles.
inline std::int64_t tiles_of(const Attention& a) { return (a.context + tile - 1) / tile; }
inline std::int64_t blocks_of(const Attention& a) {
  return (tiles_of(a) + block_tiles - 1) / block_tiles;
}

inline bool is_causal(const Attention& a) { return a.mask == AttentionMask::causal; }

/// Returns the head width, rounded up as the products need it.
template <class Products>
int padded_width(const Attention& a) {
  return static_cast<int>((a.head_width + Products::width_step - 1) / Products::width_step) *
         Products::width_step;
}

/// Returns the rows of one head for the tile that begins at position `first`. The tensor is [batch
/// * context, width of all heads]; `column` is the head's first column.
template <class T>
RowsView<T> head_rows(const Attention& a, T* data, std::int64_t width, std::int64_t column,
                      std::int64_t sequence, std::int64_t first) {
  return {data + (sequence * a.context + first) * width + column, width,
          static_cast<int>(std::min<std::int64_t>(tile, a.context - first)),
          static_cast<int>(a.head_width)};
}

/// First columns of a head's q, k and v in qkv.
struct ColumnOffsets {
  std::int64_t q, k, v;
  ColumnOffsets(const Attention& a, std::int64_t head) {
    const std::int64_t kv_head = head / (a.heads / a.kv_heads);
    q = head * a.head_width;
    k = (a.heads + kv_head) * a.head_width;
    v = k + a.kv_heads * a.head_width;
  }
};

/// A pair of a query tile and a key tile.
struct TilePair {
  bool diagonal;  ///< a query sees the keys up to its own position; else all
  int keys;       ///< the further ones are padding
  int queries;    ///< as keys
};

/// Returns the key tiles that a block of query tiles sees.
inline std::int64_t end_key_tile(const Attention& a, std::int64_t end_tile) {
  return is_causal(a) ? end_tile : tiles_of(a);
}

/// Returns the first query tile of a block that sees key tile j.
inline std::int64_t first_query_tile(const Attention& a, std::int64_t first_tile, std::int64_t j) {
  return is_causal(a) ? std::max(first_tile, j) : first_tile;
}

/// Returns the number of keys, or of queries, rounded up to whole strips of keys.
template <class Products>
int whole_strips(int rows) {
  return (rows + Products::strip_keys - 1) / Products::strip_keys * Products::strip_keys;
}

/// Calls visit(strip) for a pair of tiles: once with all keys, or, on the diagonal, once for each
/// strip of keys that some queries see.
template <class Products, class Visit>
void for_each_strip(const TilePair& pair, const Visit& visit) {
  const int end_query = whole_strips<Products>(pair.queries);
  if (!pair.diagonal) return visit(Strip{0, whole_strips<Products>(pair.keys), 0, end_query});
  for (int k = 0; k < pair.keys; k += Products::strip_keys)
    visit(Strip{k, k + Products::strip_keys, k, end_query});
}

/// Returns the end of the keys that the queries [q, q + lanes) of a tile pair compute with: all
/// keys, or the strips that begin at or before these queries.
template <class Products>
int key_end(const TilePair& pair, int q) {
  return whole_strips<Products>(pair.diagonal ? std::min(pair.keys, q + lanes) : pair.keys);
}

/// Computes the scores of a pair of tiles, -infinity for padded keys.
template <class Products>
void compute_scores(const TilePair& pair, const typename Products::Element* k,
                    const typename Products::Element* q_transposed, int width, float* scores) {
  for_each_strip<Products>(
      pair, [&](const Strip& s) { Products::scores(k, q_transposed, width, s, scores); });
  std::fill(scores + pair.keys * tile, scores + whole_strips<Products>(pair.keys) * tile,
            -std::numeric_limits<float>::infinity());
}

/// Returns the vector whose lane i is i.
inline IntVector lane_indices() {
  IntVector numbers{};
  for (int i = 0; i < lanes; ++i) numbers[i] = i;
  return numbers;
}

/// Returns `visible`, with `hidden` in the lanes where key k is later than query q + lane on the
/// diagonal.
inline Vector masked(Vector visible, bool diagonal, int k, int q, Vector hidden) {
  if (!diagonal || k <= q) return visible;
  return lane_indices() >= k - q ? visible : hidden;
}

/// Returns whether every lane is 1.
inline bool all_ones(Vector v) {
  const IntVector ones = v == 1.0f;
  std::int32_t all = -1;
  for (int i = 0; i < lanes; ++i) all &= ones[i];
  return all != 0;
}

/// Writes rows = x [tile, padded] times a factor.
template <class T>
void write_rows(const float* x, int padded, float factor, const RowsView<T>& rows) {
  for (int r = 0; r < rows.count; ++r) {
    T* const to = rows.data + r * rows.stride;
#pragma omp simd
    for (int i = 0; i < rows.width; ++i) to[i] = from_float<T>(x[r * padded + i] * factor);
  }
}

/// Writes rows = x^T times a factor, x [padded, tile]. `scratch` is as large as x.
template <class T>
void write_transposed(const float* x, int padded, float factor, const RowsView<T>& rows,
                      float* scratch) {
  transpose(x, padded, tile, scratch);
  write_rows(scratch, padded, factor, rows);
}

/// Dropout factors of a pair of tiles. Without dropout it holds no memory.
struct TileDropout {
  std::uint32_t* words = nullptr;
  float* keep = nullptr;

  TileDropout(const Attention& a, ScratchAllocator& allocator) {
    if (a.dropout <= 0) return;
    words = allocator.allocate<std::uint32_t>(DropoutTile::word_elements);
    keep = allocator.allocate<float>(tile * tile);
  }
  /// Draws the factors of the tile pair that begins at query q and key k.
  void draw(const Attention& a, std::int64_t sequence, std::int64_t head, std::int64_t q,
            std::int64_t k) const {
    if (keep == nullptr) return;
    const std::int64_t first = ((a.first_head + head) * a.context + q) * a.context + k;
    DropoutTile::draw(mix64(a.key ^ a.sample_keys[sequence]), a.dropout,
                      static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(a.context),
                      words, keep);
  }
  Vector factor(int k, int q) const { return load(keep + k * tile + q); }
};

/// Returns memory for scores as an operand of products: the scores themselves if the operand is
/// float32, else new memory.
template <class Element>
Element* score_operand(ScratchAllocator& allocator, float* scores) {
  if constexpr (std::is_same_v<Element, float>) {
    return scores;
  } else {
    return allocator.allocate<Element>(tile * tile);
  }
}

/// Returns the bytes that one thread needs.
template <class Scratch>
std::int64_t scratch_bytes(const Attention& a) {
  return Scratch(a, ScratchAllocator(nullptr)).bytes;
}

/// Calls task(scratch, i) for i in [0, tasks). OpenMP threads take tasks dynamically; each has its
/// own scratch in `workspace`.
template <class Products, class Scratch, class Task>
void for_each_task(const Attention& a, std::int64_t tasks, void* workspace, const Task& task) {
  const std::int64_t bytes = scratch_bytes<Scratch>(a);
#pragma omp parallel num_threads(omp_get_max_threads())
  {
    [[maybe_unused]] const typename Products::ThreadSetup setup;
    const Scratch scratch(
        a, ScratchAllocator(static_cast<std::byte*>(workspace) + omp_get_thread_num() * bytes));
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < tasks; ++i) task(scratch, i);
  }
}

/// Returns run(products) with the fastest form of products that this processor has for bfloat16.
template <class Run>
auto with_bfloat16_products(const Run& run) {
#if defined(TRIREME_HAVE_AMX)
  if (AmxUnit::available()) return run(AmxProducts());
#endif
#if defined(TRIREME_HAVE_BFLOAT16_PRODUCTS)
  return run(DotProducts());
#else
  return run(FloatProducts());
#endif
}

/// The same for tensors of type T.
template <class T, class Run>
void with_products(const Run& run) {
  if constexpr (std::is_same_v<T, BFloat16>)
    with_bfloat16_products(run);
  else
    run(FloatProducts());
}

/// Returns the workspace of all threads, for tensors of any type. AMX and dot products need the
/// same, so a plan remains valid on every processor that runs this build. FloatProducts pads widths
/// less, so builds without bfloat16 instructions may need less.
template <template <class> class Scratch>
std::int64_t workspace_bytes(const Attention& a) {
  const std::int64_t bfloat16_bytes = with_bfloat16_products(
      [&]<class Products>(Products) { return scratch_bytes<Scratch<Products>>(a); });
  return omp_get_max_threads() * std::max(scratch_bytes<Scratch<FloatProducts>>(a), bfloat16_bytes);
}

}  // namespace trireme::ops::cpu
