// SPDX-License-Identifier: Apache-2.0
//
// Backward pass of attention on the CPU, in tiles of 64 queries x 64 keys (Dao et al. 2022,
// algorithm 4). Called by ops/attention.cpp when the stream reaches the op.
//
// It makes one task of a key/value head, because its dk and dv are sums over the queries of all
// heads that share it. One thread adds them in one order, so the bits do not depend on the number
// of threads.

#include "attention.hpp"
#include "attention_tiles.hpp"

namespace trireme::ops::cpu {
namespace {

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
                           const TilePair& pair) {
  const float scale = log2_e * score_scale(a);
  const Vector hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (int q = 0; q < whole_strips<Products>(pair.queries); q += lanes) {
    const Vector offset = load(queries.log_sum + q) * log2_e, delta = load(queries.delta + q);
    for (int k = 0, end = key_end<Products>(pair, q); k < end; k += 2) {
      Vector p[2], ds[2];
      for (int i = 0; i < 2; ++i) {
        const Vector score = load(scratch.scores + (k + i) * tile + q);
        p[i] = exp2_of(masked(score, pair.diagonal, k + i, q, hidden) * scale - offset);
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
  // 2. All key tiles that the block sees.
  for (std::int64_t j = 0; j < end_key_tile(a, end_tile); ++j) {
    const auto keys = rows(columns.k, j);
    Products::load_left(keys, width, scratch.k);
    Products::load_left_transposed(keys, width, scratch.k_transposed, scratch.operand);
    Products::load_left(rows(columns.v, j), width, scratch.v);
    float *const dk = scratch.dk + j * tile * width, *const dv = scratch.dv + j * tile * width;
    for (std::int64_t i = first_query_tile(a, first_tile, j); i < end_tile; ++i) {
      const auto& queries = scratch.queries[i - first_tile];
      const TilePair pair{is_causal(a) && i == j, keys.count, rows(columns.q, i).count};
      scratch.dropout.draw(a, sequence, head, i * tile, j * tile);
      compute_scores<Products>(pair, scratch.k, queries.q_transposed, width, scratch.scores);
      for_each_strip<Products>(pair, [&](const Strip& s) {
        Products::scores(scratch.v, queries.dout_transposed, width, s, scratch.dscores);
      });
      softmax_gradient_step(a, scratch, queries, pair);
      for_each_strip<Products>(pair, [&](const Strip& s) {
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

template <class Products, class T>
void backward(const Attention& a, const AttentionBackward<T>& t, void* workspace) {
  using Scratch = BackwardScratch<Products>;
  for_each_task<Products, Scratch>(
      a, a.batch * a.kv_heads, workspace, [&](const Scratch& scratch, std::int64_t task) {
        backward_kv_head(a, t, task / a.kv_heads, task % a.kv_heads, scratch);
      });
}

}  // namespace

std::int64_t attention_backward_bytes(const Attention& a) {
  return workspace_bytes<BackwardScratch>(a);
}

template <class T>
void attention_backward(const Attention& a, const AttentionBackward<T>& t, void* workspace) {
  with_products<T>([&]<class Products>(Products) { backward<Products>(a, t, workspace); });
}
template void attention_backward(const Attention&, const AttentionBackward<float>&, void*);
template void attention_backward(const Attention&, const AttentionBackward<BFloat16>&, void*);
template void attention_backward(const Attention&, const AttentionBackward<Float16>&, void*);

}  // namespace trireme::ops::cpu
