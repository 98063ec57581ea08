// SPDX-License-Identifier: Apache-2.0
//
// Forward pass of attention on the CPU, in tiles of 64 queries x 64 keys. Called by
// ops/attention.cpp when the stream reaches the op.
//
// It takes blocks of four query tiles, which share the keys that they load (Dao et al. 2022,
// algorithm 1):
//
//   for each head and block of query tiles (one task; threads take tasks dynamically)
//     load q^T of the block
//     for each key tile that the block sees
//       S^T = k q^T
//       softmax_step: new maximum, p = exp(S - max), rescale sum and output
//       out^T += v^T p
//     out = out^T / sum, log_sum = max + log(sum)
//
// In generation a query comes alone, and the keys and values of earlier positions are in a cache. A
// tile of one query would waste 63 of 64 lanes, so its sums run along the width of the head
// (attention_row.hpp):
//
//   for each query and head (one task)
//     s = K q | p = exp(s - max) | out = V^T p / sum

#include "attention.hpp"
#include "attention_row.hpp"
#include "attention_tiles.hpp"

namespace trireme::ops::cpu {
namespace {

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
                  const typename ForwardScratch<Products>::Queries& queries, const TilePair& pair,
                  int width) {
  const float scale = log2_e * score_scale(a);
  const Vector hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (int q = 0; q < whole_strips<Products>(pair.queries); q += lanes) {
    const int end = key_end<Products>(pair, q);
    const float* s = scratch.scores + q;
    // 1. New maximum of each query.
    const Vector old_maximum = load(queries.maximum + q);
    Vector maximum = old_maximum;
    for (int k = 0; k < end; ++k)
      maximum = elementwise_max(masked(load(s + k * tile), pair.diagonal, k, q, hidden), maximum);
    // 2. Probabilities, two keys at a time, and their sums before dropout.
    const Vector rescale = exp2_of((old_maximum - maximum) * scale), offset = maximum * scale;
    Vector sums[2] = {};
    for (int k = 0; k < end; k += 2) {
      Vector p[2];
      for (int i = 0; i < 2; ++i) {
        p[i] = exp2_of(masked(load(s + (k + i) * tile), pair.diagonal, k + i, q, hidden) * scale -
                       offset);
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
  // 2. All key tiles that the block sees.
  for (std::int64_t j = 0; j < end_key_tile(a, end_tile); ++j) {
    const auto keys = rows(columns.k, j);
    Products::load_left(keys, width, scratch.k);
    Products::load_left_transposed(rows(columns.v, j), width, scratch.v_transposed,
                                   scratch.operand);
    for (std::int64_t i = first_query_tile(a, first_tile, j); i < end_tile; ++i) {
      const auto& queries = scratch.queries[i - first_tile];
      const TilePair pair{is_causal(a) && i == j, keys.count, rows(columns.q, i).count};
      scratch.dropout.draw(a, sequence, head, i * tile, j * tile);
      compute_scores<Products>(pair, scratch.k, queries.q_transposed, width, scratch.scores);
      softmax_step(a, scratch, queries, pair, width);
      for_each_strip<Products>(pair, [&](const Strip& s) {
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
    for (int q = 0; q < out.count; q += lanes) {
      const Vector inverse = 1.0f / load(queries.sum + q);
      for (int c = 0; c < width; ++c)
        store(queries.out_transposed + c * tile + q,
              load(queries.out_transposed + c * tile + q) * inverse);
    }
    write_transposed(queries.out_transposed, width, 1.0f, out, scratch.rows);
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
                                   .count = is_causal(a) ? a.first_query + row + 1 : a.context,
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
        // With the causal mask the last blocks see most keys and are the longest tasks, so they
        // come first.
        const std::int64_t block = blocks - 1 - task / heads, head = task % heads;
        forward_block(a, t, head / a.heads, head % a.heads, block * block_tiles, scratch);
      });
}

}  // namespace

std::int64_t attention_forward_bytes(const Attention& a) {
  if (a.first_query > 0) return omp_get_max_threads() * scratch_bytes<RowScratch>(a);
  return workspace_bytes<ForwardScratch>(a);
}

template <class T>
void attention_forward(const Attention& a, const AttentionForward<T>& t, void* workspace) {
  with_products<T>([&]<class Products>(Products) { forward<Products>(a, t, workspace); });
}
template void attention_forward(const Attention&, const AttentionForward<float>&, void*);
template void attention_forward(const Attention&, const AttentionForward<BFloat16>&, void*);
template void attention_forward(const Attention&, const AttentionForward<Float16>&, void*);

}  // namespace trireme::ops::cpu
