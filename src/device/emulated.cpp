// SPDX-License-Identifier: Apache-2.0
//
// The emulated device: a list of enqueued copies and waits that are executed as late as their order
// allows.
//
// Order of events for a copy from device to pinned memory:
// 1. copy() appends a WorkItem and fills the pinned destination with poison bytes.
// 2. A kernel on the stream (begin_kernel()), or a wait, executes the item: it reads the source
//    into `snapshot`.
// 3. wait() completes it: the values are written to the pinned memory and the item is removed.
//
// All functions take one lock, so threads may copy beside kernels. stream.cpp calls them for
// streams of the emulated device.

#include "emulated.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "memory_map.hpp"
#include "trireme/base/check.hpp"

namespace trireme::emulated {
namespace {

// Poison byte in pinned memory that a copy has not written yet.
constexpr int poison_byte = 0xA5;
constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

/// An item enqueued on a stream: a copy, or (bytes = 0) a wait for another stream up to number
/// `until`.
struct WorkItem {
  void* stream = nullptr;
  std::uint64_t number = 0;

  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
  /// Host source: its bytes at the time of the call. Pinned destination: the bytes that the host
  /// will see after its wait.
  std::vector<std::byte> snapshot = {};
  /// Cleared when the host has waited.
  bool writes_pinned = false, reads_pinned = false;

  void* awaited_stream = nullptr;
  std::uint64_t awaited_number = 0;

  bool executed = false;     ///< the emulated device has executed it
  bool host_waited = false;  ///< the host has waited for it

  bool touches_pinned(const std::byte* begin, std::size_t size) const {
    const auto overlaps = [&](const std::byte* mine) {
      return mine < begin + size && begin < mine + bytes;
    };
    return (writes_pinned && overlaps(to)) || (reads_pinned && overlaps(from));
  }
  bool is_finished() const {
    return host_waited || (executed && bytes > 0 && !writes_pinned && !reads_pinned);
  }
};

// Protects everything below.
std::mutex mutex;
int running_kernels = 0;
std::uint64_t enqueued_items = 0;
std::uint64_t host_waits = 0;
std::uintptr_t created_streams = 0;

/// Returns the enqueued work of all streams in order of the calls.
std::list<WorkItem>& pending_items() {
  // Never destroyed: static objects free memory after static destructors have run here.
  static auto* const list = new std::list<WorkItem>;
  return *list;
}

void protect_all(int protection) {
  for (const MemoryRange& range : ranges_of(DeviceKind::emulated)) {
    const bool changed = mprotect(range.begin, range.bytes, protection) == 0;
    ensure(changed, "emulated device: mprotect() failed on its memory: {}", std::strerror(errno));
  }
}

void unprotect_memory() {
  if (running_kernels == 0) protect_all(PROT_READ | PROT_WRITE);
  ++running_kernels;
}

void protect_memory() {
  if (--running_kernels == 0) protect_all(PROT_NONE);
}

struct MemoryAccess {
  MemoryAccess() { unprotect_memory(); }
  ~MemoryAccess() { protect_memory(); }
  MemoryAccess(const MemoryAccess&) = delete;
  MemoryAccess& operator=(const MemoryAccess&) = delete;
};

void execute(void* stream, std::uint64_t until);

void execute(WorkItem& item) {
  if (item.executed) return;
  item.executed = true;
  if (item.bytes == 0) return execute(item.awaited_stream, item.awaited_number);
  if (!item.writes_pinned)
    std::memcpy(item.to, item.snapshot.empty() ? item.from : item.snapshot.data(), item.bytes);
  else if (item.snapshot.empty())
    item.snapshot.assign(item.from, item.from + item.bytes);
}

/// Executes the work of a stream up to number `until`. Recursion ends, because the work that an
/// item waits for has smaller numbers.
void execute(void* stream, std::uint64_t until) {
  for (WorkItem& item : pending_items()) {
    if (item.stream == stream && item.number <= until) execute(item);
  }
}

void execute_all() {
  for (WorkItem& item : pending_items()) execute(item);
}

/// Completes a copy for the host: writes the values to a pinned destination, and throws Failure if
/// a pinned source has changed since the call.
void complete(WorkItem& item) {
  const bool was_read = std::exchange(item.reads_pinned, false);
  if (std::exchange(item.writes_pinned, false))
    std::memcpy(item.to, item.snapshot.data(), item.bytes);
  ensure(!was_read || std::memcmp(item.from, item.snapshot.data(), item.bytes) == 0,
         "emulated device: {} bytes of pinned memory changed before the host waited for the copy "
         "from them",
         item.bytes);
}

void complete(void* stream, std::uint64_t until) {
  for (WorkItem& item : pending_items()) {
    if (item.stream != stream || item.number > until || item.host_waited) continue;
    item.host_waited = true;
    if (item.bytes == 0)
      complete(item.awaited_stream, item.awaited_number);
    else
      complete(item);
  }
}

void remove_finished_items() {
  std::erase_if(pending_items(), [](const WorkItem& item) { return item.is_finished(); });
}

void wait_for(void* stream, std::uint64_t until) {
  execute(stream, until);
  complete(stream, until);
  remove_finished_items();
}

/// Resolves conflicts before a new copy uses pinned memory. Copies may follow each other through
/// the same pinned memory without a wait of the host. Executes and completes the earlier copies
/// that write this memory, and, before a write, also those that read it.
void resolve_pinned_conflicts(void* stream, const std::byte* begin, std::size_t bytes,
                              bool to_write) {
  const auto concerns = [&](const WorkItem& item) {
    return (to_write || item.writes_pinned) && item.touches_pinned(begin, bytes);
  };
  if (std::none_of(pending_items().begin(), pending_items().end(), concerns)) return;
  execute(stream, no_limit);
  for (WorkItem& item : pending_items()) {
    if (item.executed && concerns(item)) complete(item);
  }
}

}  // namespace

std::byte* allocate(Device device, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  void* data = mmap(nullptr, bytes, running_kernels > 0 ? PROT_READ | PROT_WRITE : PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  register_range({static_cast<std::byte*>(data), bytes, device});
  return static_cast<std::byte*>(data);
}

void free(std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (!pending_items().empty()) {
    const MemoryAccess memory;
    execute_all();
  }
  unregister_range(data);
  munmap(data, bytes);
}

void release_pinned(const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (pending_items().empty()) return;
  const MemoryAccess memory;
  execute_all();
  for (WorkItem& item : pending_items()) {
    if (item.touches_pinned(data, bytes)) item.writes_pinned = item.reads_pinned = false;
  }
  remove_finished_items();
}

void* make_stream() {
  const std::lock_guard lock(mutex);
  return reinterpret_cast<void*>(++created_streams);
}

std::uint64_t last_item_number() {
  const std::lock_guard lock(mutex);
  return enqueued_items;
}

void delay(void* stream, void* other, std::uint64_t until) {
  const std::lock_guard lock(mutex);
  const auto is_meant = [&](const WorkItem& item) {
    return item.stream == other && item.number <= until;
  };
  if (stream == other || std::none_of(pending_items().begin(), pending_items().end(), is_meant))
    return;
  pending_items().push_back({.stream = stream,
                             .number = ++enqueued_items,
                             .awaited_stream = other,
                             .awaited_number = until});
}

void wait(void* stream, std::uint64_t until) {
  const std::lock_guard lock(mutex);
  ++host_waits;
  if (pending_items().empty()) return;
  const MemoryAccess memory;
  wait_for(stream, until);
}

std::uint64_t host_wait_count() {
  const std::lock_guard lock(mutex);
  return host_waits;
}

void copy(void* stream, void* to, const void* from, std::size_t bytes) {
  const bool from_host = in_host_memory(device_of(from).kind),
             to_host = in_host_memory(device_of(to).kind);
  const std::lock_guard lock(mutex);
  const MemoryAccess memory;
  WorkItem item{.stream = stream,
                .to = static_cast<std::byte*>(to),
                .from = static_cast<const std::byte*>(from),
                .bytes = bytes};
  item.writes_pinned = is_pinned(to);
  item.reads_pinned = is_pinned(from);
  if (item.reads_pinned) resolve_pinned_conflicts(stream, item.from, bytes, false);
  if (item.writes_pinned) resolve_pinned_conflicts(stream, item.to, bytes, true);
  if (from_host) item.snapshot.assign(item.from, item.from + bytes);
  if (item.writes_pinned) std::memset(to, poison_byte, bytes);
  item.number = ++enqueued_items;
  if ((from_host && !item.reads_pinned) || (to_host && !item.writes_pinned)) ++host_waits;
  pending_items().push_back(std::move(item));
  if (to_host && !is_pinned(to)) wait_for(stream, enqueued_items);
}

void begin_kernel(void* stream) {
  const std::lock_guard lock(mutex);
  unprotect_memory();
  execute(stream, no_limit);
  remove_finished_items();
}

void end_kernel() {
  const std::lock_guard lock(mutex);
  protect_memory();
}

}  // namespace trireme::emulated
