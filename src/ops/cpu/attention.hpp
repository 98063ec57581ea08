#pragma once

#include "trireme/ops/attention.hpp"

namespace trireme::ops::cpu {

/// Bytes of workspace that all threads need together.
std::int64_t attention_forward_bytes(const Attention& attention);
std::int64_t attention_backward_bytes(const Attention& attention);

/// Element [0] of each tensor; layouts as in trireme/ops/attention.hpp, T float or BFloat16.
template <class T>
struct AttentionForward {
  const T* qkv = nullptr;
  T* out = nullptr;
  float* log_sum = nullptr;
};
template <class T>
void attention_forward(const Attention& attention, const AttentionForward<T>& arguments, void* workspace);

template <class T>
struct AttentionBackward {
  const T *qkv = nullptr, *out = nullptr;
  const float* log_sum = nullptr;
  const T* dout = nullptr;
  T* dqkv = nullptr;
};
template <class T>
void attention_backward(const Attention& attention, const AttentionBackward<T>& arguments, void* workspace);

}  // namespace trireme::ops::cpu
