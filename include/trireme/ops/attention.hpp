#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Causal attention (Vaswani et al. 2017) of `batch` sequences of `context` positions, softmax(q
/// k^T / sqrt(head_width)) v, grouped-query where kv_heads < heads: query head h reads key/value
/// head h / (heads / kv_heads). Computed in tiles (Dao et al. 2022): there is never a context x
/// context matrix in memory. qkv [batch * context, (heads + 2 kv_heads) * head_width]: q of all
/// heads, then k, then v. out [batch * context, heads * head_width]. log_sum float32 [batch, heads,
/// context]: logarithm of the sum of exponentials of a row's scores, for backward.
struct Attention {
  std::int64_t batch = 0, context = 0, heads = 0, kv_heads = 0, head_width = 0;
  DType dtype = DType::float32;  ///< of qkv, out and their gradients: float32, bfloat16 or float16;
                                 ///< sums are float32
  float dropout = 0;             ///< probability of a dropped attention probability
  std::uint64_t key = 0;         ///< of the layer's dropout
  const std::uint64_t* sample_keys = nullptr;  ///< [batch] (device memory); read where dropout > 0
  /// Number of this part's head 0 in the unsplit layer; dropout's element is ((first_head + head) *
  /// context + q) * context + k.
  std::int64_t first_head = 0;

  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_width; }
  std::int64_t out_width() const { return heads * head_width; }
  /// Of one forward: two products over the pairs (q, k <= q). Backward makes five products, 2.5
  /// times as many.
  double flops() const { return 2.0 * batch * heads * head_width * context * (context + 1); }
};

void attention_forward(Context&, const Attention&, const Tensor& qkv, const Tensor& out,
                       const Tensor& log_sum);
/// dqkv = gradient of qkv; `out` and `log_sum` are forward's.
void attention_backward(Context&, const Attention&, const Tensor& qkv, const Tensor& out,
                        const Tensor& log_sum, const Tensor& dout, const Tensor& dqkv);

}  // namespace trireme::ops
