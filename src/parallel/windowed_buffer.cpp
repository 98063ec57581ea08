// SPDX-License-Identifier: Apache-2.0
//
// Access to state by window, with copies if the state is in host memory. Called by optim and
// ParameterStore.

#include "trireme/parallel/windowed_buffer.hpp"

#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {

WindowedBuffer::WindowedBuffer(const ParameterShard& shard, const StateMemory& memory, Range range)
    : flat_((memory.host != nullptr ? *memory.host : memory.device)
                .allocate(DType::float32,
                          {range == Range::all ? shard.elements() : shard.trained_elements()})) {
  if (memory.host == nullptr) return;
  const std::int64_t largest = range == Range::all
                                   ? shard.largest_window_elements()
                                   : ParameterShard::largest_elements(shard.trained_windows());
  for (Tensor& staging : staging_) staging = memory.device.allocate(DType::float32, {largest});
}

Tensor WindowedBuffer::open(ops::Context& context, const ParameterShard::Window& window) {
  const Tensor home = flat_.rows(window.begin, window.end);
  if (!staged()) return home;
  last_opened_ = 1 - last_opened_;
  const Tensor here = staging_[last_opened_].rows(0, window.elements());
  ops::copy(context, home, here);
  return here;
}

void WindowedBuffer::close(ops::Context& context, const ParameterShard::Window& window) const {
  if (staged())
    ops::copy(context, staging_[last_opened_].rows(0, window.elements()),
              flat_.rows(window.begin, window.end));
}

}  // namespace trireme::parallel
