#pragma once

#include "trireme/kernels/attention.hpp"
#include "trireme/ops/attention.hpp"

namespace trireme::ops::cpu {

using kernels::AttentionBackward, kernels::AttentionForward;

/// Bytes of workspace that all threads need together.
std::int64_t attention_forward_bytes(const Attention& attention);
std::int64_t attention_backward_bytes(const Attention& attention);

/// Element [0] of each tensor; layouts as in trireme/ops/attention.hpp, T float, BFloat16 or
/// Float16. out =, log_sum =.
template <class T>
void attention_forward(const Attention& attention, const AttentionForward<T>& arguments,
                       void* workspace);
/// dqkv =. `delta` is not looked at: it is a part of the workspace.
template <class T>
void attention_backward(const Attention& attention, const AttentionBackward<T>& arguments,
                        void* workspace);

}  // namespace trireme::ops::cpu
