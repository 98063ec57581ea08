#pragma once

#include <cstring>
#include <span>
#include <type_traits>

#include "trireme/device/device.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/parallel/windowed_buffer.hpp"

namespace trireme::parallel {

/// A small array that kernels read, or write: where kernels run in host memory the host's own, else a copy of it on the device.
template <class T>
class DeviceTable {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceTable() = default;
  /// `host` outlives the table and stays where it is.
  DeviceTable(std::span<T> host, const StateMemory& memory) : host_(host) {
    if (!in_host_memory(memory.target)) copy_ = memory.device.allocate(DType::uint8, {static_cast<std::int64_t>(host.size_bytes())});
  }

  /// The host has changed its array.
  void changed() { changed_ = true; }
  /// The array as a kernel on `stream` sees it: with what the host changed last.
  T* on(const Stream& stream) {
    if (copy_.data == nullptr) return host_.data();
    if (changed_) copy_bytes(stream, copy_.data, host_.data(), host_.size_bytes());
    changed_ = false;
    return static_cast<T*>(copy_.data);
  }

 private:
  std::span<T> host_;
  Tensor copy_;  ///< without data where none is needed, and on meta
  bool changed_ = true;
};

/// A value that kernels write, on its way to the host: it is sent when it has been made, and waited for when the host needs it, while the device goes on.
template <class T>
class Report {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Report(Device device)
      : value_(device.kind == DeviceKind::meta ? device : Device{}, sizeof(T), "a report", in_host_memory(device.kind) ? Pages::ordinary : Pages::pinned),
        there_(device) {}

  /// What stands at `from` when `stream` has come here.
  void send(const Stream& stream, const T* from) {
    copy_bytes(stream, value_.data(), from, sizeof(T));
    there_.record(stream);
  }
  /// What was sent last, for which the host waits. Not on meta.
  T wait() const {
    there_.wait();
    T value;
    std::memcpy(&value, value_.data(), sizeof(T));
    return value;
  }

 private:
  Allocation value_;
  Event there_;
};

}  // namespace trireme::parallel
