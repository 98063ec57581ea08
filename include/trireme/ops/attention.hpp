// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/attention.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

using kernels::AttentionMask;

/// Attention softmax(q k^T / sqrt(head_width)) v (Vaswani et al. 2017) of `batch` sequences of
/// `context` positions. A query at position q sees the keys k <= q, or all keys (`mask`).
///
/// Grouped-query where kv_heads < heads: query head h reads key/value head h / (heads / kv_heads).
/// It is computed in tiles (Dao et al. 2022), so no context x context matrix is ever in memory.
///
///   qkv      [batch * context, (heads + 2 kv_heads) * head_width]   q of all heads, then k, then v
///   out      [batch * context, heads * head_width]
///   log_sum  float32 [batch, heads, context]: log(sum of exp(score)) of each row, for backward
///
/// With first_query > 0, qkv, out and log_sum have a row for each query instead of each position.
struct Attention {
  std::int64_t batch = 0, context = 0, heads = 0, kv_heads = 0, head_width = 0;
  /// Type of qkv, out and their gradients: float32, bfloat16 or float16. Sums are float32.
  DType dtype = DType::float32;
  /// Probability that an attention probability is dropped, in [0, 1).
  float dropout = 0;
  /// Random key of the layer's dropout.
  std::uint64_t key = 0;
  /// [batch], in memory that the kernels can read. Read only if dropout > 0.
  const std::uint64_t* sample_keys = nullptr;
  /// Index of this tensor rank's first head in the unsplit layer. The random number of a
  /// probability has the index ((first_head + head) * context + q) * context + k, so that the mask
  /// does not depend on the layout.
  std::int64_t first_head = 0;
  /// Position of the first query: the queries are the positions [first_query, context). Above 0
  /// only in generation, for one sequence whose earlier keys and values are in a cache.
  std::int64_t first_query = 0;
  AttentionMask mask = AttentionMask::causal;
  std::int64_t queries() const { return context - first_query; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_width; }
  std::int64_t out_width() const { return heads * head_width; }
  /// Width of a row of the cache: k of all heads, then v.
  std::int64_t keys_values_width() const { return 2 * kv_heads * head_width; }
  /// Returns the number of pairs of a query and a key that it sees, in one head of one sequence.
  std::int64_t visible_pairs() const {
    if (mask == AttentionMask::none) return queries() * context;
    return (context * (context + 1) - first_query * (first_query + 1)) / 2;
  }
  /// Returns the operations of one forward: two products over the visible pairs. Backward makes
  /// five products, 2.5 times as many: that of the scores is the forward pass's, computed again.
  double flops() const { return 4.0 * batch * heads * head_width * visible_pairs(); }
};

/// Enqueues the forward pass: writes out and log_sum.
void attention_forward(Context&, const Attention&, const Tensor& qkv, const Tensor& out,
                       const Tensor& log_sum);
/// The same for the queries of one sequence whose keys and values are in a cache.
///
/// `cache` [at least context, keys_values_width()]: row p holds k and v of position p. Writes the
/// rows [first_query, context) from qkv first; earlier rows are those of earlier calls.
void attention_forward(Context&, const Attention&, const Tensor& qkv, const Tensor& cache,
                       const Tensor& out, const Tensor& log_sum);
/// Enqueues the backward pass: writes dqkv, the gradient of qkv. `out` and `log_sum` are forward's
/// results.
void attention_backward(Context&, const Attention&, const Tensor& qkv, const Tensor& out,
                        const Tensor& log_sum, const Tensor& dout, const Tensor& dqkv);

}  // namespace trireme::ops
