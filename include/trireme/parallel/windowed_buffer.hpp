#pragma once

#include "trireme/ops/context.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

/// Where state lies: on the device; or in host memory, and then the device has room for what is
/// worked on.
struct StateMemory {
  StateMemory(Arena& device_in, Arena* host_in = nullptr)
      : StateMemory(device_in, host_in, device_in.device().kind) {
  }  // NOLINT(google-explicit-constructor): the usual case
  StateMemory(Arena& device_in, Arena* host_in, DeviceKind target_in)
      : device(device_in), host(host_in), target(target_in) {}
  Arena& device;
  Arena* host;        ///< null: on the device
  DeviceKind target;  ///< of the device; on meta, of the one whose memory needs are asked for
};

/// float32 state in the layout of a shard's buffers, worked on window by window. On the device a
/// window is a view of it and nothing moves. In host memory a window is copied in and out; two
/// staging buffers take the windows in turn, so that one can come or go while the other is worked
/// on. What the host reads of flat() there has come home when the host has waited for the context's
/// stream.
class WindowedBuffer {
 public:
  WindowedBuffer() = default;
  /// Of what stands in the memory: zeros at the start of an arena's life.
  WindowedBuffer(const ParameterShard& shard, const StateMemory& memory);

  /// The whole, where it lies.
  const Tensor& flat() const { return flat_; }
  /// The window's elements on the device; good until the second open() after this one.
  Tensor open(ops::Context& context, const ParameterShard::Window& window);
  /// What was changed in the window opened last goes home.
  void close(ops::Context& context, const ParameterShard::Window& window) const;

 private:
  bool staged() const { return staging_[0].defined(); }
  Tensor flat_, staging_[2];
  int last_opened_ = 0;  ///< which of them was opened last
};

}  // namespace trireme::parallel
