#pragma once

#include "trireme/ops/attention.hpp"

namespace trireme::ops::cuda {

/// Tensors of attention, with what backward takes of the workspace: float32 sums of dq [batch *
/// context, heads * head_width] and the row sums of out * dout [batch, heads, context].
struct AttentionTensors {
  Tensor qkv, out, log_sum, dout, dqkv, dq_sum, delta;
};

// Attention where the context's target is a CUDA device, by cuDNN where it has an engine, else by
// the kernel of kernels/attention.cpp. Shapes and types have been checked. On meta, in any build,
// only memory is taken.
void attention_forward(Context&, const Attention&, const AttentionTensors&);
void attention_backward(Context&, const Attention&, AttentionTensors);

}  // namespace trireme::ops::cuda
