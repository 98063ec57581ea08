#pragma once

#include <memory>

#include "attention.hpp"
#include "graph.hpp"

namespace trireme::ops::cuda {

// Attention as one graph of cuDNN, which it runs as one kernel on the tensor cores (forward;
// backward with two small ones around it): bfloat16 or float16, without dropout. Backward adds up
// dq in float32 in the order in which its blocks come: the bits are not the same at every run.

/// Empty where no engine supports it.
std::unique_ptr<Plan> make_attention_forward(const PlanTarget& target, const Attention& attention,
                                             std::int64_t max_workspace_bytes);
std::unique_ptr<Plan> make_attention_backward(const PlanTarget& target, const Attention& attention,
                                              std::int64_t max_workspace_bytes);

cudnnStatus_t run_attention_forward(Plan& plan, const Attention& attention,
                                    const AttentionTensors& tensors, void* workspace);
cudnnStatus_t run_attention_backward(Plan& plan, const Attention& attention,
                                     const AttentionTensors& tensors, void* workspace);

}  // namespace trireme::ops::cuda
