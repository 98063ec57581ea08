// SPDX-License-Identifier: Apache-2.0
//
// Attention on CUDA. cuDNN runs it where it supports the problem; otherwise the program's own
// kernel does. The workspace is taken in either case, so that a plan made on meta has the same
// memory.

#include "attention.hpp"

#include <algorithm>

#include "ops/dispatch/backend.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops::cuda {
namespace {

kernels::AttentionShape shape_of(const Attention& a) {
  return {a.batch, a.context,     a.heads,      a.kv_heads,    a.head_width, a.dropout,
          a.key,   a.sample_keys, a.first_head, a.first_query, a.mask};
}

/// Returns whether cuDNN may run the problem. Its dropout draws other random numbers than ours, it
/// would round float32, and its graphs read keys from qkv.
bool may_use_cudnn(const Context& context, const Attention& a) {
  return context.fusions() && a.dtype != DType::float32 && a.dropout == 0 && a.first_query == 0;
}

/// Takes the workspace of cuDNN. At the limit it may be too small for cuDNN's plan, which depends
/// on the device; then the program's own kernel runs.
Tensor allocate_workspace(Context& context, Problem::Kind kind, const Attention& a) {
  return context.workspace().allocate(
      DType::uint8, {std::min(attention_workspace_bytes(kind, a), max_attention_workspace_bytes)});
}

}  // namespace

// Asked of cuDNN 9.19 for compute capability 8.0, 9.0 and 10.0 (tests/kernels/cuda_graph_test.cpp).
// Forward has up to 256 bytes of counters. Backward has them, and
// - with grouped keys on all devices: dk and dv of each query head in 16 bits. A second kernel adds
//   them up by groups;
// - on 8.0: float32 sums of dq, in place of those that the caller takes. Their positions are
//   rounded up to a multiple of 8; whole tiles leave room for other versions.
std::int64_t attention_workspace_bytes(Problem::Kind kind, const Attention& a) {
  constexpr std::int64_t counters = 256, tile = 128;
  const std::int64_t elements =
      a.batch * ((a.context + tile - 1) / tile * tile) * a.heads * a.head_width;
  const bool backward = kind == Problem::Kind::attention_backward;
  const std::int64_t dq_sums = backward ? elements * size_of(DType::float32) : 0,
                     head_gradients =
                         backward && a.kv_heads < a.heads ? 2 * elements * size_of(a.dtype) : 0;
  return dq_sums + head_gradients + counters + workspace_alignment;
}

void attention_forward(Context& context, const Attention& a, const AttentionTensors& t) {
  const ArenaScope scope(context.workspace());
  const bool use_cudnn = may_use_cudnn(context, a);
  const Tensor workspace =
      use_cudnn ? allocate_workspace(context, Problem::Kind::attention_forward, a) : Tensor{};
  if (context.meta()) return;
  if (use_cudnn &&
      context.backend().cuda->attend(Problem::Kind::attention_forward, a, t, workspace))
    return;
  with_element_type(a.dtype, [&]<class T>(T) {
    kernels::attention_forward<T>(context.stream(), shape_of(a),
                                  {t.qkv.as<T>(), t.out.as<T>(), t.log_sum.as<float>(),
                                   t.cache.defined() ? t.cache.as<T>() : nullptr});
  });
}

// cuDNN's backward adds dq in no fixed order, so deterministic runs use the program's own kernel.
void attention_backward(Context& context, const Attention& a, AttentionTensors t) {
  const bool use_cudnn = may_use_cudnn(context, a) && !context.deterministic();
  const ArenaScope scope(context.workspace());
  t.delta = context.workspace().allocate(DType::float32, t.log_sum.shape);
  const Tensor workspace =
      use_cudnn ? allocate_workspace(context, Problem::Kind::attention_backward, a) : Tensor{};
  if (use_cudnn)
    t.dq_sum = context.workspace().allocate(DType::float32, {a.batch * a.context, a.out_width()});
  if (context.meta()) return;
  if (use_cudnn &&
      context.backend().cuda->attend(Problem::Kind::attention_backward, a, t, workspace))
    return;
  with_element_type(a.dtype, [&]<class T>(T) {
    kernels::attention_backward<T>(context.stream(), shape_of(a),
                                   {t.qkv.as<T>(), t.out.as<T>(), t.log_sum.as<float>(),
                                    t.dout.as<T>(), t.dqkv.as<T>(), t.delta.as<float>()});
  });
}

}  // namespace trireme::ops::cuda
