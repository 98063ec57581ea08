// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/dispatch/problem.hpp"
#include "trireme/ops/attention.hpp"

namespace trireme::ops::cuda {

/// Tensors of one attention call. `cache` is defined if there are earlier positions. Backward also
/// takes from the workspace: float32 sums of dq [batch
/// * context, heads * head_width] and delta, the row sums of out * dout [batch, heads, context].
struct AttentionTensors {
  Tensor qkv, cache, out, log_sum, dout, dqkv, dq_sum, delta;
};

/// The largest workspace that attention takes: 1 GiB, and the bytes that its alignment may need. A
/// problem that needs more runs on the program's own kernel, which needs none. With grouped keys,
/// 32 heads of width 128 have 32768 positions in it.
constexpr std::int64_t max_attention_workspace_bytes = (std::int64_t{1} << 30) + 1024;

/// Returns the bytes of workspace that a pass of attention takes for cuDNN, with
/// workspace_alignment (library.hpp). Known without a device, so that a plan made on meta has the
/// same memory.
std::int64_t attention_workspace_bytes(Problem::Kind kind, const Attention&);

// Attention for contexts whose target is CUDA: cuDNN if it has an engine, else the kernel of
// kernels/attention.cpp. The caller has checked shapes and types. On meta, in any build, the
// functions only take their workspace.
void attention_forward(Context&, const Attention&, const AttentionTensors&);
void attention_backward(Context&, const Attention&, AttentionTensors);

}  // namespace trireme::ops::cuda
