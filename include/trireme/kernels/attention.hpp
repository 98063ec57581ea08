#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Causal attention; see ops/attention.hpp for what it computes and for the layouts.
struct AttentionShape {
  std::int64_t batch = 0, context = 0, heads = 0, kv_heads = 0, head_width = 0;
  float dropout = 0;
  std::uint64_t key = 0;
  const std::uint64_t* sample_keys = nullptr;  ///< [batch]; not read at dropout 0
  std::int64_t first_head = 0;
};

/// out =, log_sum =. Throws Failure where a head is wider than some 1900 numbers, whose tiles do
/// not fit.
template <class T>
struct AttentionForward {
  const T* qkv = nullptr;
  T* out = nullptr;
  float* log_sum = nullptr;
};
template <class T>
void attention_forward(const Stream&, const AttentionShape&, const AttentionForward<T>&);

/// dqkv =; the sums of an element have one order: the same bits at every run.
template <class T>
struct AttentionBackward {
  const T *qkv = nullptr, *out = nullptr;
  const float* log_sum = nullptr;
  const T* dout = nullptr;
  T* dqkv = nullptr;
  float* delta = nullptr;  ///< workspace [batch, heads, context]
};
template <class T>
void attention_backward(const Stream&, const AttentionShape&, const AttentionBackward<T>&);

}  // namespace trireme::kernels
