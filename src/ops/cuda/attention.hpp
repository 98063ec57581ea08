#pragma once

#include "trireme/ops/attention.hpp"

namespace trireme::ops::cuda {

/// Tensors of one attention call. `cache` is defined if there are earlier positions. Backward also
/// takes from the workspace: float32 sums of dq [batch
/// * context, heads * head_width] and delta, the row sums of out * dout [batch, heads, context].
struct AttentionTensors {
  Tensor qkv, cache, out, log_sum, dout, dqkv, dq_sum, delta;
};

// Attention for contexts whose target is CUDA: cuDNN if it has an engine, else the kernel of
// kernels/attention.cpp. The caller has checked shapes and types. On meta, in any build, the
// functions only take their workspace.
void attention_forward(Context&, const Attention&, const AttentionTensors&);
void attention_backward(Context&, const Attention&, AttentionTensors);

}  // namespace trireme::ops::cuda
