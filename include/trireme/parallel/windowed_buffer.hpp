// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/ops/context.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

/// The memory of master weights or slots: on the device, or on the host with staging buffers on the
/// device.
struct StateMemory {
  StateMemory(Arena& device_in, Arena* host_in = nullptr)
      : StateMemory(device_in, host_in, device_in.device().kind) {
  }  // NOLINT(google-explicit-constructor): the usual case
  StateMemory(Arena& device_in, Arena* host_in, DeviceKind target_in)
      : device(device_in), host(host_in), target(target_in) {}
  Arena& device;
  Arena* host;        ///< null: state is on the device
  DeviceKind target;  ///< kind of the device; on meta, the kind whose memory is planned
};

/// float32 state in the layout of a shard, accessed window by window.
///
/// On the device open() returns a view and nothing is copied. In host memory, two staging buffers
/// on the device are used in turn:
///
///   stream   copy in w0 | update w0 | copy out w0 | copy in w1 | update w1 | copy out w1
///   buffer   0 ...................................  1 ...................................
///
/// The host must synchronize with the context's stream before it reads flat().
class WindowedBuffer {
 public:
  /// The elements of a shard that a buffer has: all, or those in front of frozen tensors.
  enum class Range : std::uint8_t { all, trained };
  WindowedBuffer() = default;
  /// Allocates the state, which is zero in a new arena, and the staging buffers. A buffer of the
  /// trained part is accessed by ParameterShard::trained_windows() only.
  WindowedBuffer(const ParameterShard& shard, const StateMemory& memory, Range range = Range::all);

  /// Returns the whole state, in host or device memory.
  const Tensor& flat() const { return flat_; }
  /// Returns the elements of the window in device memory, valid until the second open() after this
  /// one.
  Tensor open(ops::Context& context, const ParameterShard::Window& window);
  /// Copies the window opened last back to host memory, if the state is there.
  void close(ops::Context& context, const ParameterShard::Window& window) const;

 private:
  bool staged() const { return staging_[0].defined(); }
  Tensor flat_, staging_[2];
  int last_opened_ = 0;  ///< index of the staging buffer opened last
};

}  // namespace trireme::parallel
