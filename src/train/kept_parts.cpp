#include "kept_parts.hpp"

#include "trireme/ops/elementwise.hpp"

namespace trireme::train {

Arena& KeptParts::begin(ops::Context& context, int part) {
  return windows_ == nullptr ? own_ : take(context, part).arena;
}

void KeptParts::need(ops::Context& context, int part) {
  if (windows_ == nullptr || holds(window(part), part)) return;
  const Tensor& host = host_[static_cast<std::size_t>(part)];
  TRIREME_EXPECT(host.defined());
  ops::copy(context, host, take(context, part).arena.allocate(host.dtype, host.shape));
}

void KeptParts::drop(int part) {
  if (windows_ != nullptr && holds(window(part), part)) window(part).holder = nullptr;
}

Tensor KeptParts::lasting(ops::Context& context, const Tensor& tensor) const {
  if (windows_ == nullptr) return tensor;
  const Tensor copy = own_.allocate(tensor.dtype, tensor.shape);
  ops::copy(context, tensor, copy);
  return copy;
}

/// Empties the window of a part for it.
ActivationWindows::Window& KeptParts::take(ops::Context& context, int part) {
  ActivationWindows::Window& taken = window(part);
  if (taken.holder != nullptr) taken.holder->put_away(context, taken);
  taken.arena.rewind(0);
  taken.holder = this;
  taken.part = part;
  return taken;
}

void KeptParts::put_away(ops::Context& context, ActivationWindows::Window& window) {
  const Shape bytes{window.arena.used_bytes()};
  Tensor& host = host_[static_cast<std::size_t>(window.part)];
  if (!host.defined()) host = windows_->host_.allocate(DType::uint8, bytes);
  TRIREME_EXPECT(host.shape == bytes);
  window.arena.rewind(0);
  ops::copy(context, window.arena.allocate(host.dtype, host.shape), host);
}

}  // namespace trireme::train
