#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "trireme/base/expect.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/parallel/windowed_buffer.hpp"

namespace trireme::parallel {

/// A small array that kernels read, or write: where kernels run in host memory the host's own, else
/// a copy of it on the device.
template <class T>
class DeviceTable {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceTable() = default;
  /// `host` outlives the table and stays where it is.
  DeviceTable(std::span<T> host, const StateMemory& memory) : host_(host) {
    if (!in_host_memory(memory.target))
      copy_ = memory.device.allocate(DType::uint8, {static_cast<std::int64_t>(host.size_bytes())});
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

/// Values that kernels write, on their way to the host: they are sent when they have been made, and
/// waited for when the host needs them, while the device goes on. Two sendings at most are under
/// way.
template <class T>
class Report {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Report(Device device, std::size_t count = 1) : count_(count) {
    const Pages pages = in_host_memory(device.kind) ? Pages::pageable : Pages::pinned;
    for (Sending& sending : sendings_)
      sending = {Allocation(device.kind == DeviceKind::meta ? device : Device{}, count * sizeof(T),
                            "a report", pages),
                 Event(device)};
  }

  /// What stands at `from` when `stream` has come here.
  void send(const Stream& stream, const T* from) {
    TRIREME_EXPECT(sent_ - heard_ < sendings_.size());
    Sending& sending = sendings_[sent_++ % sendings_.size()];
    copy_bytes(stream, sending.values.data(), from, count_ * sizeof(T));
    sending.there.record(stream);
  }
  /// What was sent first of all not heard of, for which the host waits: [count], good until the
  /// next sending. Null on meta.
  const T* hear() {
    TRIREME_EXPECT(heard_ < sent_);
    const Sending& sending = sendings_[heard_++ % sendings_.size()];
    sending.there.wait();
    return reinterpret_cast<const T*>(sending.values.data());
  }

 private:
  struct Sending {
    Allocation values;
    Event there;
  };
  std::size_t count_;
  std::array<Sending, 2> sendings_;
  std::size_t sent_ = 0, heard_ = 0;
};

}  // namespace trireme::parallel
