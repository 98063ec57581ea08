#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "trireme/device/device.hpp"

// Work of a device in order, and how it and the host wait for each other. On the CPU all is done
// when a call returns, and nothing waits. A failure of the device is thrown as Failure by whichever
// call meets it.

namespace trireme {

/// A stream of its own, ended with its owner; work of other streams runs beside it. `urgent`: what
/// can run now is preferred to other streams' work.
class OwnedStream {
 public:
  enum class Priority : std::uint8_t { normal, high };
  OwnedStream() = default;  ///< of the CPU
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

/// From now on `call` gets the handle of each OwnedStream that is about to end, so that what was
/// made for it can go first. One call a process, which may not throw.
void set_stream_destroy_callback(void (*call)(void* handle));

/// A point in a stream: made once, recorded often. One that was never recorded is passed.
class Event {
 public:
  Event() = default;  ///< of the CPU
  /// `timed`: for a Stopwatch.
  explicit Event(Device device, bool timed = false);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// From now on it stands for the end of what `stream` has been given so far.
  void record(const Stream& stream);
  /// What `stream` is given from now on begins after it. The host goes on.
  void delay(const Stream& stream) const;
  /// Whether it has been passed; asks, and does not wait.
  bool is_done() const;
  /// The host waits for it.
  void wait() const;

 private:
  friend class Stopwatch;
  Device device_;
  void* handle_ = nullptr;
};

/// How long a device takes between two points of a stream; on the CPU, and an emulated device, the
/// host.
class Stopwatch {
 public:
  explicit Stopwatch(Device device) : start_(device, true), stop_(device, true) {}

  void start(const Stream& stream);
  void stop(const Stream& stream);
  /// Between the last start and stop, both of which the host knows to be passed.
  double seconds() const;

 private:
  Event start_, stop_;
  double started_ = 0, stopped_ = 0;
};

/// Copies `bytes` in the order of the stream. Each side lies on the host or on the stream's device;
/// they may not overlap. Where a side is pinned host memory (Pages::pinned) the call may return
/// before the copy is made: that side is the copy's until the host has waited for it. Ordinary host
/// memory is read or written when the call returns.
void copy_bytes(const Stream& stream, void* to, const void* from, std::size_t bytes);
/// The host waits for all that the stream has been given.
void synchronize(const Stream& stream);

/// Kernels that run on the host's cores may touch an emulated device's memory while one lives
/// (those of all threads). On other devices nothing.
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
