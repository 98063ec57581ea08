// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// The keys that a query sees: those up to its own position, or all.
enum class AttentionMask : std::uint8_t { causal, none };

/// Shape of attention, and its dropout. ops/attention.hpp has the formula and the layouts.
struct AttentionShape {
  std::int64_t batch = 0, context = 0, heads = 0, kv_heads = 0, head_width = 0;
  float dropout = 0;
  std::uint64_t key = 0;
  /// [batch]; not read if dropout is 0
  const std::uint64_t* sample_keys = nullptr;
  /// index of this part's head 0 in the unsplit layer
  std::int64_t first_head = 0;
  /// position of the first query; backward needs 0
  std::int64_t first_query = 0;
  AttentionMask mask = AttentionMask::causal;
};

/// Arguments of attention_forward(): out =, log_sum =.
template <class T>
struct AttentionForward {
  /// the rows of the queries
  const T* qkv = nullptr;
  T* out = nullptr;
  float* log_sum = nullptr;
  /// keys and values of all positions, needed if first_query > 0; null: those of qkv
  const T* keys_values = nullptr;
};
/// Enqueues the forward pass. Throws Failure if head_width is above 3666: the tiles would not fit
/// into scratch memory.
template <class T>
void attention_forward(const Stream&, const AttentionShape&, const AttentionForward<T>&);

/// Arguments of attention_backward(): dqkv =. Every sum has one order, so all runs produce the same
/// bits.
template <class T>
struct AttentionBackward {
  const T *qkv = nullptr, *out = nullptr;
  const float* log_sum = nullptr;
  const T* dout = nullptr;
  T* dqkv = nullptr;
  /// workspace [batch, heads, context]
  float* delta = nullptr;
};
/// Enqueues the backward pass in three launches. Throws Failure if head_width is above 1875, as
/// attention_forward() does.
template <class T>
void attention_backward(const Stream&, const AttentionShape&, const AttentionBackward<T>&);

}  // namespace trireme::kernels
