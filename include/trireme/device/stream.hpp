// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "trireme/device/device.hpp"

// Streams, events and copies: the order of work on a device, and waits between streams and the
// host. On the CPU every call completes its work before it returns, and nothing waits. Every call
// throws Failure for a failure of the device, also for one that earlier work caused.

namespace trireme {

/// Creates a stream and destroys it in the destructor. Work on different streams may overlap. A
/// stream of priority `high` is scheduled before streams of priority `normal`.
class OwnedStream {
 public:
  enum class Priority : std::uint8_t { normal, high };
  /// A stream of the CPU.
  OwnedStream() = default;
  /// `graphs`: if set, launches in sections are recorded there (launch.hpp). It must outlive the
  /// stream.
  explicit OwnedStream(Device device, Priority priority = Priority::normal,
                       LaunchGraphs* graphs = nullptr);
  ~OwnedStream();
  OwnedStream(OwnedStream&& other) noexcept : stream_(std::exchange(other.stream_, {})) {}
  OwnedStream& operator=(OwnedStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  operator const Stream&() const {
    return stream_;
  }  // NOLINT(google-explicit-constructor): it is one
  const Stream& get() const { return stream_; }

 private:
  Stream stream_;
};

/// Sets a function that receives the handle of each OwnedStream just before its destruction, to
/// free objects made for that stream. One function per process; it must not throw. Null removes it.
void set_stream_destroy_callback(void (*call)(void* handle));

/// A point in a stream: created once, recorded often. An event that was never recorded counts as
/// done.
///
///   stream A   kernel 1 | record(A) | kernel 2
///   stream B   kernel 3 | delay(B)  | kernel 4 starts after kernel 1
///   host                | wait() returns after kernel 1
class Event {
 public:
  /// An event of the CPU.
  Event() = default;
  /// `timed`: the event stores its time, for a Stopwatch. Untimed events are cheaper.
  explicit Event(Device device, bool timed = false);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// Moves the event to the end of the work enqueued on `stream` so far.
  void record(const Stream& stream);
  /// Makes later work on `stream` start after the event. The host does not wait.
  void delay(const Stream& stream) const;
  /// Returns whether the event is done, without waiting on CUDA. Waits on the other devices.
  bool is_done() const;
  /// Blocks the calling thread until the event is done. Any thread may call it.
  void wait() const;

 private:
  friend class Stopwatch;
  friend class DeviceMoment;
  Device device_;
  void* handle_ = nullptr;
};

/// Measures the time between two points of a stream: device time on CUDA, host time on the CPU and
/// on an emulated device.
class Stopwatch {
 public:
  explicit Stopwatch(Device device) : start_(device, true), stop_(device, true) {}

  void start(const Stream& stream);
  void stop(const Stream& stream);
  /// Returns the seconds between the last start() and stop(). The caller must have waited for both
  /// points.
  double seconds() const;

 private:
  friend class DeviceMoment;
  Event start_, stop_;
  double started_ = 0, stopped_ = 0;
};

/// A moment in the time of a device and in that of the host, which places a Stopwatch in the time
/// of the host.
class DeviceMoment {
 public:
  /// Takes this moment. Waits until the device has executed an event on a stream of its own, some
  /// microseconds.
  explicit DeviceMoment(Device device);
  /// Returns the value of monotonic_seconds() at which `stopwatch` was started on this device,
  /// accurate to some microseconds within a minute, and to 0.25 ms after an hour: the device
  /// measures with 24 bits. The caller must have waited for that point.
  double start_of(const Stopwatch& stopwatch) const;

 private:
  Event event_;
  double seconds_ = 0;
};

/// Enqueues a copy of `bytes` bytes on the stream. Each side is in host memory or on the stream's
/// device; the sides must not overlap.
///
/// If a side is pinned host memory (Pages::pinned), the call may return before the copy is done:
/// until the host has waited for it, that side must not be touched. With pageable host memory on
/// either side, the call waits for the stream.
void copy_bytes(const Stream& stream, void* to, const void* from, std::size_t bytes);
/// Blocks the calling thread until all work enqueued on the stream is done.
void synchronize(const Stream& stream);

/// During its lifetime host code may touch the memory of all emulated devices. Kernels that run on
/// the host's cores create one. Work enqueued on the stream before is executed first. Does nothing
/// on other devices.
class DeviceAccess {
 public:
  explicit DeviceAccess(const Stream& stream);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

 private:
  bool opened_;
};

}  // namespace trireme
