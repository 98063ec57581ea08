// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/attention.hpp"
#include "trireme/ops/attention.hpp"

namespace trireme::ops::cpu {

using kernels::AttentionBackward, kernels::AttentionForward;

/// Return the bytes of workspace that all threads need together, for omp_get_max_threads() threads.
std::int64_t attention_forward_bytes(const Attention& attention);
std::int64_t attention_backward_bytes(const Attention& attention);

/// Computes attention on all threads and returns when it is done. Pointers are element [0] of each
/// tensor, with the layouts of trireme/ops/attention.hpp. T is float, BFloat16 or Float16. Writes
/// out and log_sum.
template <class T>
void attention_forward(const Attention& attention, const AttentionForward<T>& arguments,
                       void* workspace);
/// The same for the backward pass. Writes dqkv. `delta` of the arguments is not read; it is in the
/// workspace.
template <class T>
void attention_backward(const Attention& attention, const AttentionBackward<T>& arguments,
                        void* workspace);

}  // namespace trireme::ops::cpu
