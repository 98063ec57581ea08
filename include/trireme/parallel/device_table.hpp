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
  void mark_changed() { changed_ = true; }
  /// The array as a kernel on `stream` sees it: with what the host changed last.
  T* view(const Stream& stream) {
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
class AsyncReadback {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit AsyncReadback(Device device, std::size_t count = 1) : count_(count) {
    const Pages pages = in_host_memory(device.kind) ? Pages::pageable : Pages::pinned;
    for (Transfer& transfer : transfers_)
      transfer = {Allocation(device.kind == DeviceKind::meta ? device : Device{}, count * sizeof(T),
                             "a report", pages),
                  Event(device)};
  }

  /// What stands at `from` when `stream` has come here.
  void enqueue(const Stream& stream, const T* from) {
    TRIREME_EXPECT(num_enqueued_ - num_returned_ < transfers_.size());
    Transfer& transfer = transfers_[num_enqueued_++ % transfers_.size()];
    copy_bytes(stream, transfer.values.data(), from, count_ * sizeof(T));
    transfer.done.record(stream);
  }
  /// What was sent first of all not heard of, for which the host waits: [count], good until the
  /// next sending. Null on meta.
  const T* wait() {
    TRIREME_EXPECT(num_returned_ < num_enqueued_);
    const Transfer& transfer = transfers_[num_returned_++ % transfers_.size()];
    transfer.done.wait();
    return reinterpret_cast<const T*>(transfer.values.data());
  }

 private:
  struct Transfer {
    Allocation values;
    Event done;
  };
  std::size_t count_;
  std::array<Transfer, 2> transfers_;
  std::size_t num_enqueued_ = 0, num_returned_ = 0;
};

}  // namespace trireme::parallel
