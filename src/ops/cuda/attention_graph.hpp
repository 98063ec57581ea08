#pragma once

#include <memory>

#include "attention.hpp"
#include "graph.hpp"

namespace trireme::ops::cuda {

// Attention as one cuDNN graph, which cuDNN runs as one kernel on the tensor cores (backward: with
// two small kernels around it). For bfloat16 or float16 without dropout. Backward adds dq in
// float32 in the order in which blocks finish, so its bits differ from run to run.

/// Returns the plan, or null if no engine supports the shape within `max_workspace_bytes`.
std::unique_ptr<Plan> make_attention_forward(const PlanTarget& target, const Attention& attention,
                                             std::int64_t max_workspace_bytes);
std::unique_ptr<Plan> make_attention_backward(const PlanTarget& target, const Attention& attention,
                                              std::int64_t max_workspace_bytes);

/// Enqueues the plan on its handle's stream. The caller checks the status.
cudnnStatus_t run_attention_forward(Plan& plan, const Attention& attention,
                                    const AttentionTensors& tensors, void* workspace);
cudnnStatus_t run_attention_backward(Plan& plan, const Attention& attention,
                                     const AttentionTensors& tensors, void* workspace);

}  // namespace trireme::ops::cuda
