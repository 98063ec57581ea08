// SPDX-License-Identifier: Apache-2.0
//
// Stores activations between forward and backward, with or without offload; timeline in
// activation_store.hpp.
#include "activation_store.hpp"

#include "trireme/ops/elementwise.hpp"

namespace trireme::train {

Arena& ActivationStore::begin_part(ops::Context& context, int part) {
  return windows_ == nullptr ? own_ : take_window(context, part).arena;
}

void ActivationStore::acquire(ops::Context& context, int part) {
  if (windows_ == nullptr || holds(window(part), part)) return;
  const Tensor& host = host_parts_[static_cast<std::size_t>(part)];
  TRIREME_EXPECT(host.defined());
  ops::copy(context, host, take_window(context, part).arena.allocate(host.dtype, host.shape));
}

void ActivationStore::release(int part) {
  if (windows_ != nullptr && holds(window(part), part)) window(part).owner = nullptr;
}

Tensor ActivationStore::copy_for_send(ops::Context& context, const Tensor& tensor) const {
  if (windows_ == nullptr) return tensor;
  const Tensor copy = own_.allocate(tensor.dtype, tensor.shape);
  ops::copy(context, tensor, copy);
  return copy;
}

/// Takes the window of this part, after evicting its current content.
OffloadWindows::Window& ActivationStore::take_window(ops::Context& context, int part) {
  OffloadWindows::Window& taken = window(part);
  if (taken.owner != nullptr) taken.owner->evict(context, taken);
  taken.arena.rewind(0);
  taken.owner = this;
  taken.part = part;
  return taken;
}

/// Copies a window's content to its place in host memory.
void ActivationStore::evict(ops::Context& context, OffloadWindows::Window& window) {
  const Shape bytes{window.arena.used_bytes()};
  Tensor& host = host_parts_[static_cast<std::size_t>(window.part)];
  if (!host.defined()) host = windows_->host_.allocate(DType::uint8, bytes);
  TRIREME_EXPECT(host.shape == bytes);
  window.arena.rewind(0);
  ops::copy(context, window.arena.allocate(host.dtype, host.shape), host);
}

}  // namespace trireme::train
