// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/base/expect.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/parallel/windowed_buffer.hpp"

namespace trireme::parallel {

/// A host array that kernels read or write. Where kernels run in host memory they use the
/// array itself, elsewhere a copy on the device.
template <class T>
class DeviceTable {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceTable() = default;
  /// `host` must outlive the table and keep its address.
  DeviceTable(std::span<T> host, const StateMemory& memory) : host_(host) {
    allocate(host.size(), memory);
  }

  /// Marks the host array as modified: the next view() copies it to the device again.
  void mark_changed() { changed_ = true; }
  /// Returns the address for a kernel on `stream`. Enqueues a copy first if the host array was
  /// modified.
  T* view(const Stream& stream) {
    if (copy_.data == nullptr) return host_.data();
    if (changed_) copy_bytes(stream, copy_.data, host_.data(), host_.size_bytes());
    changed_ = false;
    return static_cast<T*>(copy_.data);
  }

 protected:
  /// Allocates the copy of a table of `count` values, if there is one.
  void allocate(std::size_t count, const StateMemory& memory) {
    if (!in_host_memory(memory.target))
      copy_ = memory.device.allocate(DType::uint8, {static_cast<std::int64_t>(count * sizeof(T))});
  }

 private:
  std::span<T> host_;
  Tensor copy_;  ///< without data if no copy is needed, and on meta
  bool changed_ = true;
};

/// A table that owns its array. On meta there is no array, because nothing reads it: the tables of
/// a large model have gigabytes, and a plan needs only their size.
template <class T>
class OwnedTable : private DeviceTable<T> {
 public:
  using Value = std::remove_const_t<T>;

  OwnedTable() = default;
  /// Makes a table of `count` values. fill(values) sets them, which are zero before; it is not
  /// called on meta.
  template <class Fill>
  OwnedTable(std::size_t count, const StateMemory& memory, Fill&& fill) {
    if (memory.device.device().kind == DeviceKind::meta) {
      this->allocate(count, memory);
      return;
    }
    values_.resize(count);
    fill(std::span<Value>(values_));
    static_cast<DeviceTable<T>&>(*this) = DeviceTable<T>(values_, memory);
  }
  OwnedTable(std::size_t count, const StateMemory& memory)
      : OwnedTable(count, memory, [](std::span<Value>) {}) {}
  OwnedTable(OwnedTable&&) = default;
  OwnedTable& operator=(OwnedTable&&) = default;

  /// Returns the address of value `index` for a kernel on `stream`, as DeviceTable::view(); null
  /// on meta.
  T* at(const Stream& stream, std::size_t index = 0) {
    T* const first = this->view(stream);
    return first == nullptr ? nullptr : first + index;
  }

 private:
  std::vector<Value> values_;
};

/// Copies values that kernels computed to the host without blocking it.
///
///   stream   step n | enqueue(n) | step n+1  | enqueue(n+1) | ...
///   host     enqueues ........................| wait() returns the values of step n
///
/// At most two copies may be in flight.
template <class T>
class AsyncReadback {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit AsyncReadback(Device device, std::size_t count = 1) : count_(count) {
    const Pages pages = in_host_memory(device.kind) ? Pages::pageable : Pages::pinned;
    for (Transfer& transfer : transfers_)
      transfer = {Allocation(device.kind == DeviceKind::meta ? device : Device{}, count * sizeof(T),
                             "readback", pages),
                  Event(device)};
  }

  /// Enqueues a copy of the values at `from`, in their state at this point of `stream`.
  void enqueue(const Stream& stream, const T* from) {
    TRIREME_EXPECT(num_enqueued_ - num_returned_ < transfers_.size());
    Transfer& transfer = transfers_[num_enqueued_++ % transfers_.size()];
    copy_bytes(stream, transfer.values.data(), from, count_ * sizeof(T));
    transfer.done.record(stream);
  }
  /// Waits for the oldest copy in flight and returns its [count] values, valid until the next
  /// enqueue(). Returns null on meta.
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
