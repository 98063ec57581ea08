#pragma once

#include "trireme/ops/context.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

/// Where state lies: on the device; or in host memory, and then the device has room for what is worked on.
struct StateMemory {
  StateMemory(Arena& device_in, Arena* host_in = nullptr) : device(device_in), host(host_in) {}  // NOLINT(google-explicit-constructor): the usual case
  Arena& device;
  Arena* host;  ///< null: on the device
};

/// float32 state in the layout of a shard's buffers, worked on window by window. On the device a window is a view of it and nothing moves. In
/// host memory a window is copied in and out; two staging buffers take the windows in turn, so that one can come or go while the other is
/// worked on.
class WindowedBuffer {
 public:
  WindowedBuffer() = default;
  /// Of zeros.
  WindowedBuffer(const Shard& shard, const StateMemory& memory);

  /// The whole, where it lies.
  const Tensor& flat() const { return flat_; }
  /// The window's elements on the device; good until the second open() after this one.
  Tensor open(ops::Context& context, const Shard::Window& window);
  /// What was changed in the window opened last goes home.
  void close(ops::Context& context, const Shard::Window& window) const;

 private:
  bool staged() const { return staging_[0].defined(); }
  Tensor flat_, staging_[2];
  int turn_ = 0;  ///< which of them was opened last
};

}  // namespace trireme::parallel
