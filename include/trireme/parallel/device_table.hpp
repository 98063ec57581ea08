#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "trireme/device/stream.hpp"
#include "trireme/parallel/windowed_buffer.hpp"

namespace trireme::parallel {

/// A small array of the host that kernels read, or write: where kernels run in host memory the array itself, else a copy of it on the device.
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
  /// The host's array gets what kernels on `stream` wrote; the host waits for it.
  void fetch(const Stream& stream)
    requires(!std::is_const_v<T>)
  {
    if (copy_.data != nullptr) copy_bytes(stream, host_.data(), copy_.data, host_.size_bytes());
    changed_ = false;
  }

 private:
  std::span<T> host_;
  Tensor copy_;  ///< without data where none is needed, and on meta
  bool changed_ = true;
};

}  // namespace trireme::parallel
