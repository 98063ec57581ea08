// SPDX-License-Identifier: Apache-2.0
//
// Causal attention on the CPU, in tiles of 64 queries x 64 keys. Called by ops/attention.cpp when
// the stream reaches the op.
//
// Forward (Dao et al. 2022, algorithm 1) takes blocks of four query tiles, which share the keys
// that they load:
//
//   for each head and block of query tiles (one task; threads take tasks dynamically)
//     load q^T of the block
//     for each key tile at or before the block
//       S^T = k q^T
//       softmax_step: new maximum, p = exp(S - max), rescale sum and output
//       out^T += v^T p
//     out = out^T / sum, log_sum = max + log(sum)
//
// Backward (algorithm 4) makes one task of a key/value head, because its dk and dv are sums over
// the queries of all heads that share it. One thread adds them in one order, so the bits do not
// depend on the number of threads.
//
// In generation a query comes alone, and the keys and values of earlier positions are in a cache. A
// tile of one query would waste 63 of 64 lanes, so its sums run along the width of the head
// (attention_row.hpp):
//
//   for each query and head (one task)
//     s = K q | p = exp(s - max) | out = V^T p / sum
//
// Tiles are padded with zeros. A padded key is later than every query, so the causal mask hides it.
// A padded query has no gradient.

#include "attention.hpp"

#include <omp.h>

#include <cmath>
#include <cstddef>
#include <limits>

#include "attention_amx.hpp"
#include "attention_bfloat16.hpp"
#include "attention_dropout.hpp"
#include "attention_products.hpp"
#include "attention_row.hpp"
#include "attention_scratch.hpp"

namespace trireme::ops::cpu {
namespace {

constexpr int block_tiles = 4;  // tiles of queries that share a loaded tile of keys

float score_scale(const Attention& a) { return 1.0f / std::sqrt(static_cast<float>(a.head_width)); }

// Numbers of tiles of queries in a sequence, and of blocks of tiles.
std::int64_t tiles_of(const Attention& a) { return (a.context + tile - 1) / tile; }
std::int64_t blocks_of(const Attention& a) { return (tiles_of(a) + block_tiles - 1) / block_tiles; }

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

/// Calls visit(strip) for a pair of tiles: once with all keys, or, on the diagonal, once for each
/// strip of keys that some queries see.
template <class Products, class Visit>
void for_each_strip(bool diagonal, int keys, const Visit& visit) {
  if (!diagonal) return visit(Strip{0, tile, 0});
  for (int k = 0; k < keys; k += Products::strip_keys) visit(Strip{k, k + Products::strip_keys, k});
}

/// Returns the end of the keys that the queries [q, q + lanes) of a tile pair compute with: all
/// keys, or the strips that begin at or before these queries.
template <class Products>
int key_end(bool diagonal, int keys, int q) {
  if (!diagonal) return tile;
  const int step = Products::strip_keys, visible_end = std::min(keys, q + lanes);
  return (visible_end + step - 1) / step * step;
}

/// Returns the vector whose lane i is i.
IntVector lane_indices() {
  IntVector numbers{};
  for (int i = 0; i < lanes; ++i) numbers[i] = i;
  return numbers;
}

/// Returns `visible`, with `hidden` in the lanes where key k is later than query q + lane on the
/// diagonal.
Vector masked(Vector visible, bool diagonal, int k, int q, Vector hidden) {
  if (!diagonal || k <= q) return visible;
  return lane_indices() >= k - q ? visible : hidden;
}

/// Returns whether every lane is 1.
bool all_ones(Vector v) {
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

/// A thread's arrays in forward.
template <class Products>
struct ForwardScratch {
  using Element = typename Products::Element;
  struct Queries {
    Element* q_transposed;
    float *out_transposed, *maximum, *sum;
  };
  Queries queries[block_tiles];
  Element *k, *v_transposed, *operand;
  float* scores;  ///< S^T
  Element* probabilities;
  float* rows;  ///< [tile, width]
  TileDropout dropout;
  std::int64_t bytes = 0;

  ForwardScratch(const Attention& a, ScratchAllocator allocator) : dropout(a, allocator) {
    const int width = padded_width<Products>(a);
    for (Queries& one : queries) {
      one.q_transposed = allocator.allocate<Element>(width * tile);
      one.out_transposed = allocator.allocate<float>(width * tile);
      one.maximum = allocator.allocate<float>(tile);
      one.sum = allocator.allocate<float>(tile);
    }
    for (Element** one : {&k, &v_transposed, &operand})
      *one = allocator.allocate<Element>(tile * width);
    scores = allocator.allocate<float>(tile * tile);
    probabilities = score_operand<Element>(allocator, scores);
    rows = allocator.allocate<float>(tile * width);
    bytes = allocator.bytes();
  }
};

/// Computes one softmax step of a tile pair: from scores to probabilities relative to the new row
/// maximum. Row sums and the earlier output are rescaled to it.
template <class Products>
void softmax_step(const Attention& a, const ForwardScratch<Products>& scratch,
                  const typename ForwardScratch<Products>::Queries& queries, bool diagonal,
                  int keys, int width) {
  const float scale = log2_e * score_scale(a);
  const Vector hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (int q = 0; q < tile; q += lanes) {
    const int end = key_end<Products>(diagonal, keys, q);
    const float* s = scratch.scores + q;
    // 1. New maximum of each query.
    const Vector old_maximum = load(queries.maximum + q);
    Vector maximum = old_maximum;
    for (int k = 0; k < end; ++k)
      maximum = elementwise_max(masked(load(s + k * tile), diagonal, k, q, hidden), maximum);
    // 2. Probabilities, two keys at a time, and their sums before dropout.
    const Vector rescale = exp2_of((old_maximum - maximum) * scale), offset = maximum * scale;
    Vector sums[2] = {};
    for (int k = 0; k < end; k += 2) {
      Vector p[2];
      for (int i = 0; i < 2; ++i) {
        p[i] =
            exp2_of(masked(load(s + (k + i) * tile), diagonal, k + i, q, hidden) * scale - offset);
        sums[i] += p[i];
        if (scratch.dropout.keep != nullptr) p[i] *= scratch.dropout.factor(k + i, q);
      }
      Products::put_right(scratch.probabilities, k, q, p[0], p[1]);
    }
    // 3. Rescale the sum, and the output unless the maximum has not changed.
    store(queries.maximum + q, maximum);
    store(queries.sum + q, load(queries.sum + q) * rescale + (sums[0] + sums[1]));
    if (all_ones(rescale)) continue;
    for (int i = 0; i < width; ++i)
      store(queries.out_transposed + i * tile + q,
            load(queries.out_transposed + i * tile + q) * rescale);
  }
}

/// Computes the output of one block of queries of one head.
template <class Products, class T>
void forward_block(const Attention& a, const AttentionForward<T>& t, std::int64_t sequence,
                   std::int64_t head, std::int64_t first_tile,
                   const ForwardScratch<Products>& scratch) {
  const int width = padded_width<Products>(a);
  const ColumnOffsets columns(a, head);
  const std::int64_t end_tile = std::min(first_tile + block_tiles, tiles_of(a));
  const auto rows = [&](std::int64_t column, std::int64_t number) {
    return head_rows(a, t.qkv, a.qkv_width(), column, sequence, number * tile);
  };
  // 1. Load the queries; start from an empty sum.
  for (std::int64_t i = first_tile; i < end_tile; ++i) {
    const auto& queries = scratch.queries[i - first_tile];
    Products::load_right_transposed(rows(columns.q, i), width, queries.q_transposed,
                                    scratch.operand);
    std::fill_n(queries.out_transposed, width * tile, 0.0f);
    std::fill_n(queries.maximum, tile, -std::numeric_limits<float>::infinity());
    std::fill_n(queries.sum, tile, 0.0f);
  }
  // 2. All key tiles up to the block's last one.
  for (std::int64_t j = 0; j < end_tile; ++j) {
    const auto keys = rows(columns.k, j);
    Products::load_left(keys, width, scratch.k);
    Products::load_left_transposed(rows(columns.v, j), width, scratch.v_transposed,
                                   scratch.operand);
    for (std::int64_t i = std::max(first_tile, j); i < end_tile; ++i) {
      const auto& queries = scratch.queries[i - first_tile];
      const auto strips = [&](const auto& visit) {
        for_each_strip<Products>(i == j, keys.count, visit);
      };
      scratch.dropout.draw(a, sequence, head, i * tile, j * tile);
      strips([&](const Strip& s) {
        Products::scores(scratch.k, queries.q_transposed, width, s, scratch.scores);
      });
      softmax_step(a, scratch, queries, i == j, keys.count, width);
      strips([&](const Strip& s) {
        Products::sum_over_keys(scratch.v_transposed, scratch.probabilities, width, s,
                                queries.out_transposed);
      });
    }
  }
  // 3. Divide by the sums and write the results.
  const float scale = score_scale(a);
  for (std::int64_t i = first_tile; i < end_tile; ++i) {
    const auto& queries = scratch.queries[i - first_tile];
    const auto out = head_rows(a, t.out, a.out_width(), columns.q, sequence, i * tile);
    float* const log_sum = t.log_sum + (sequence * a.heads + head) * a.context + i * tile;
    for (int q = 0; q < out.count; ++q)
      log_sum[q] = queries.maximum[q] * scale + std::log(queries.sum[q]);
    for (int q = 0; q < tile; q += lanes) {
      const Vector inverse = 1.0f / load(queries.sum + q);
      for (int c = 0; c < width; ++c)
        store(queries.out_transposed + c * tile + q,
              load(queries.out_transposed + c * tile + q) * inverse);
    }
    write_transposed(queries.out_transposed, width, 1.0f, out, scratch.rows);
  }
}

/// A thread's arrays in backward.
template <class Products>
struct BackwardScratch {
  using Element = typename Products::Element;
  struct Queries {
    Element *q, *q_transposed, *dout, *dout_transposed;
    float *dq_transposed, *log_sum, *delta;
  };
  Queries queries[block_tiles];
  Element *k, *k_transposed, *v, *operand;
  float *scores, *dscores;  ///< S^T and the gradient of the probabilities
  Element *probabilities, *dscores_left, *dscores_right;
  float *dk, *dv;  ///< [tiles of keys, tile, width], of one key/value head
  float* rows;     ///< [tile, width]
  TileDropout dropout;
  std::int64_t bytes = 0;

  BackwardScratch(const Attention& a, ScratchAllocator allocator) : dropout(a, allocator) {
    const int width = padded_width<Products>(a);
    for (Queries& one : queries) {
      for (Element** two : {&one.q, &one.q_transposed, &one.dout, &one.dout_transposed})
        *two = allocator.allocate<Element>(width * tile);
      one.dq_transposed = allocator.allocate<float>(width * tile);
      one.log_sum = allocator.allocate<float>(tile);
      one.delta = allocator.allocate<float>(tile);
    }
    for (Element** one : {&k, &k_transposed, &v, &operand})
      *one = allocator.allocate<Element>(tile * width);
    scores = allocator.allocate<float>(tile * tile);
    dscores = allocator.allocate<float>(tile * tile);
    probabilities = score_operand<Element>(allocator, scores);
    dscores_left = score_operand<Element>(allocator, dscores);
    dscores_right = score_operand<Element>(allocator, dscores);
    dk = allocator.allocate<float>(tiles_of(a) * tile * width);
    dv = allocator.allocate<float>(tiles_of(a) * tile * width);
    rows = allocator.allocate<float>(tile * width);
    bytes = allocator.bytes();
  }
};

/// Computes from scores and the gradient of the probabilities (after dropout) the probabilities and
/// the gradient of the scores, both as operands of products.
template <class Products>
void softmax_gradient_step(const Attention& a, const BackwardScratch<Products>& scratch,
                           const typename BackwardScratch<Products>::Queries& queries,
                           bool diagonal, int keys) {
  const float scale = log2_e * score_scale(a);
  const Vector hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (int q = 0; q < tile; q += lanes) {
    const Vector offset = load(queries.log_sum + q) * log2_e, delta = load(queries.delta + q);
    for (int k = 0, end = key_end<Products>(diagonal, keys, q); k < end; k += 2) {
      Vector p[2], ds[2];
      for (int i = 0; i < 2; ++i) {
        p[i] = exp2_of(
            masked(load(scratch.scores + (k + i) * tile + q), diagonal, k + i, q, hidden) * scale -
            offset);
        const Vector dp = load(scratch.dscores + (k + i) * tile + q);
        if (scratch.dropout.keep == nullptr) {
          ds[i] = p[i] * (dp - delta);
        } else {
          const Vector keep = scratch.dropout.factor(k + i, q);
          ds[i] = p[i] * (dp * keep - delta);
          p[i] *= keep;
        }
      }
      Products::put_left(scratch.probabilities, k, q, p[0], p[1]);
      Products::put_both(scratch.dscores_left, scratch.dscores_right, k, q, ds[0], ds[1]);
    }
  }
}

/// Computes delta = row sums of out * dout (Dao et al. 2022, eq. 4), which the gradient of softmax
/// subtracts.
template <class T>
void row_dot_products(const RowsView<T>& out, const RowsView<T>& dout, float* delta) {
  std::fill_n(delta, tile, 0.0f);
  for (int r = 0; r < out.count; ++r) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < out.width; ++i)
      sum += to_float(out.data[r * out.stride + i]) * to_float(dout.data[r * dout.stride + i]);
    delta[r] = sum;
  }
}

/// Computes dq of one block of queries of one head, and adds its terms to dk and dv.
template <class Products, class T>
void backward_block(const Attention& a, const AttentionBackward<T>& t, std::int64_t sequence,
                    std::int64_t head, std::int64_t first_tile,
                    const BackwardScratch<Products>& scratch) {
  const int width = padded_width<Products>(a);
  const ColumnOffsets columns(a, head);
  const std::int64_t end_tile = std::min(first_tile + block_tiles, tiles_of(a));
  const auto rows = [&](std::int64_t column, std::int64_t number) {
    return head_rows(a, t.qkv, a.qkv_width(), column, sequence, number * tile);
  };
  // 1. Load the block's queries, output gradients, log sums and delta.
  for (std::int64_t i = first_tile; i < end_tile; ++i) {
    const auto& queries = scratch.queries[i - first_tile];
    const auto q = rows(columns.q, i),
               dout = head_rows(a, t.dout, a.out_width(), columns.q, sequence, i * tile);
    Products::load_right(q, width, queries.q);
    Products::load_right_transposed(q, width, queries.q_transposed, scratch.operand);
    Products::load_right(dout, width, queries.dout);
    Products::load_right_transposed(dout, width, queries.dout_transposed, scratch.operand);
    row_dot_products(head_rows(a, t.out, a.out_width(), columns.q, sequence, i * tile), dout,
                     queries.delta);
    std::fill_n(queries.log_sum, tile, 0.0f);
    std::copy_n(t.log_sum + (sequence * a.heads + head) * a.context + i * tile, q.count,
                queries.log_sum);
    std::fill_n(queries.dq_transposed, width * tile, 0.0f);
  }
  // 2. All key tiles up to the block's last one.
  for (std::int64_t j = 0; j < end_tile; ++j) {
    const auto keys = rows(columns.k, j);
    Products::load_left(keys, width, scratch.k);
    Products::load_left_transposed(keys, width, scratch.k_transposed, scratch.operand);
    Products::load_left(rows(columns.v, j), width, scratch.v);
    float *const dk = scratch.dk + j * tile * width, *const dv = scratch.dv + j * tile * width;
    for (std::int64_t i = std::max(first_tile, j); i < end_tile; ++i) {
      const auto& queries = scratch.queries[i - first_tile];
      const auto strips = [&](const auto& visit) {
        for_each_strip<Products>(i == j, keys.count, visit);
      };
      scratch.dropout.draw(a, sequence, head, i * tile, j * tile);
      strips([&](const Strip& s) {
        Products::scores(scratch.k, queries.q_transposed, width, s, scratch.scores);
        Products::scores(scratch.v, queries.dout_transposed, width, s, scratch.dscores);
      });
      softmax_gradient_step(a, scratch, queries, i == j, keys.count);
      strips([&](const Strip& s) {
        Products::sum_over_queries(scratch.probabilities, queries.dout, width, s, dv);
        Products::sum_over_queries(scratch.dscores_left, queries.q, width, s, dk);
        Products::sum_over_keys(scratch.k_transposed, scratch.dscores_right, width, s,
                                queries.dq_transposed);
      });
    }
  }
  // 3. Write dq.
  for (std::int64_t i = first_tile; i < end_tile; ++i) {
    const auto dq = head_rows(a, t.dqkv, a.qkv_width(), columns.q, sequence, i * tile);
    write_transposed(scratch.queries[i - first_tile].dq_transposed, width, score_scale(a), dq,
                     scratch.rows);
  }
}

/// Computes the gradients of one key/value head and of all query heads that share it.
template <class Products, class T>
void backward_kv_head(const Attention& a, const AttentionBackward<T>& t, std::int64_t sequence,
                      std::int64_t kv_head, const BackwardScratch<Products>& scratch) {
  const int width = padded_width<Products>(a);
  const std::int64_t tiles = tiles_of(a), group = a.heads / a.kv_heads,
                     first_head = kv_head * group;
  std::fill_n(scratch.dk, tiles * tile * width, 0.0f);
  std::fill_n(scratch.dv, tiles * tile * width, 0.0f);
  for (std::int64_t head = first_head; head < first_head + group; ++head) {
    for (std::int64_t i = 0; i < tiles; i += block_tiles)
      backward_block(a, t, sequence, head, i, scratch);
  }
  const ColumnOffsets columns(a, first_head);
  for (std::int64_t j = 0; j < tiles; ++j) {
    const auto rows = [&](std::int64_t column) {
      return head_rows(a, t.dqkv, a.qkv_width(), column, sequence, j * tile);
    };
    write_rows(scratch.dk + j * tile * width, width, score_scale(a), rows(columns.k));
    write_rows(scratch.dv + j * tile * width, width, 1.0f, rows(columns.v));
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

/// Computes each query by itself over the keys and values of the cache.
template <class T>
void forward_rows(const Attention& a, const AttentionForward<T>& t, void* workspace) {
  for_each_task<FloatProducts, RowScratch>(
      a, a.heads * a.queries(), workspace, [&](const RowScratch& scratch, std::int64_t task) {
        const std::int64_t row = task / a.heads, head = task % a.heads,
                           key_column = head / (a.heads / a.kv_heads) * a.head_width;
        const CachedHead<T> cached{.keys = t.keys_values + key_column,
                                   .values = t.keys_values + key_column + a.kv_heads * a.head_width,
                                   .stride = a.keys_values_width(),
                                   .count = a.first_query + row + 1,
                                   .width = a.head_width};
        t.log_sum[head * a.queries() + row] =
            attend_row(cached, t.qkv + row * a.qkv_width() + head * a.head_width, score_scale(a),
                       scratch, t.out + row * a.out_width() + head * a.head_width);
      });
}

template <class Products, class T>
void forward(const Attention& a, const AttentionForward<T>& t, void* workspace) {
  if (a.first_query > 0) return forward_rows(a, t, workspace);
  using Scratch = ForwardScratch<Products>;
  const std::int64_t heads = a.batch * a.heads, blocks = blocks_of(a);
  for_each_task<Products, Scratch>(
      a, heads * blocks, workspace, [&](const Scratch& scratch, std::int64_t task) {
        // The last blocks see most keys and are the longest tasks, so they come first.
        const std::int64_t block = blocks - 1 - task / heads, head = task % heads;
        forward_block(a, t, head / a.heads, head % a.heads, block * block_tiles, scratch);
      });
}

template <class Products, class T>
void backward(const Attention& a, const AttentionBackward<T>& t, void* workspace) {
  using Scratch = BackwardScratch<Products>;
  for_each_task<Products, Scratch>(
      a, a.batch * a.kv_heads, workspace, [&](const Scratch& scratch, std::int64_t task) {
        backward_kv_head(a, t, task / a.kv_heads, task % a.kv_heads, scratch);
      });
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

/// Returns the workspace of all threads, for tensors of any type. AMX and dot products need the
/// same, so a plan remains valid on every processor that runs this build. FloatProducts pads widths
/// less, so builds without bfloat16 instructions may need less.
template <template <class> class Scratch>
std::int64_t workspace_bytes(const Attention& a) {
  const std::int64_t bfloat16_bytes = with_bfloat16_products(
      [&]<class Products>(Products) { return scratch_bytes<Scratch<Products>>(a); });
  return omp_get_max_threads() * std::max(scratch_bytes<Scratch<FloatProducts>>(a), bfloat16_bytes);
}

}  // namespace

std::int64_t attention_forward_bytes(const Attention& a) {
  if (a.first_query > 0) return omp_get_max_threads() * scratch_bytes<RowScratch>(a);
  return workspace_bytes<ForwardScratch>(a);
}
std::int64_t attention_backward_bytes(const Attention& a) {
  return workspace_bytes<BackwardScratch>(a);
}

template <>
void attention_forward(const Attention& a, const AttentionForward<float>& t, void* workspace) {
  forward<FloatProducts>(a, t, workspace);
}
template <>
void attention_forward(const Attention& a, const AttentionForward<BFloat16>& t, void* workspace) {
  with_bfloat16_products([&]<class Products>(Products) { forward<Products>(a, t, workspace); });
}

template <>
void attention_forward(const Attention& a, const AttentionForward<Float16>& t, void* workspace) {
  forward<FloatProducts>(a, t, workspace);
}

template <>
void attention_backward(const Attention& a, const AttentionBackward<float>& t, void* workspace) {
  backward<FloatProducts>(a, t, workspace);
}
template <>
void attention_backward(const Attention& a, const AttentionBackward<BFloat16>& t, void* workspace) {
  with_bfloat16_products([&]<class Products>(Products) { backward<Products>(a, t, workspace); });
}
template <>
void attention_backward(const Attention& a, const AttentionBackward<Float16>& t, void* workspace) {
  backward<FloatProducts>(a, t, workspace);
}

}  // namespace trireme::ops::cpu
