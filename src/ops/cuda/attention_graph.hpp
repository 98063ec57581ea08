// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "attention.hpp"
#include "graph.hpp"

namespace trireme::ops::cuda {

// Attention as one cuDNN graph, which cuDNN runs as one kernel on the tensor cores (backward: with
// two small kernels around it). For bfloat16 or float16 without dropout. Backward adds dq in
// float32 in the order in which blocks finish, so its bits differ from run to run.

/// The demands of backward in older versions of cuDNN (its release notes of 9.6 and 9.16).
struct AttentionBackwardRules {
  bool sums_must_be_zero = false;  ///< the float32 sums of dq before the run
  std::int64_t context_multiple =
      1;  ///< other contexts need a mask of padding, which we do not set
};
/// Returns the rules of a version of cuDNN, as cudnnGetVersion() returns it.
AttentionBackwardRules attention_backward_rules(std::size_t version);

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
