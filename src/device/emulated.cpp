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

constexpr int poison_byte = 0xA5;  // what stands in pinned memory that a copy has not come to yet
constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

/// What a stream was given: a copy, or (bytes = 0) to go on behind another stream.
struct WorkItem {
  void* stream = nullptr;
  std::uint64_t number = 0;

  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
  std::vector<std::byte> snapshot = {};  // of a source on the host as they were when the copy was
                                         // given; of a pinned target, those that the host will find
  bool writes_pinned = false, reads_pinned = false;  // until the host has waited

  void* awaited_stream = nullptr;
  std::uint64_t awaited_number = 0;

  bool executed = false;     // by the device
  bool host_waited = false;  // by the host

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

std::mutex mutex;  // held by whoever touches what follows
int running_kernels = 0;
std::uint64_t enqueued_items = 0;
std::uint64_t host_waits = 0;
std::uintptr_t created_streams = 0;

/// In the order in which it was given.
std::list<WorkItem>& pending_items() {
  static auto* const list =
      new std::list<WorkItem>;  // never destroyed: statics give memory back after it would be
  return *list;
}

void protect_all(int protection) {
  for (const MemoryRange& range : ranges_of(DeviceKind::emulated))
    ensure(mprotect(range.begin, range.bytes, protection) == 0,
           "emulated device: the protection of its memory could not be changed: {}",
           std::strerror(errno));
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

/// The device makes what the stream was given until then. What it comes behind has a smaller
/// number, so this ends.
void execute(void* stream, std::uint64_t until) {
  for (WorkItem& item : pending_items()) {
    if (item.stream == stream && item.number <= until) execute(item);
  }
}

void execute_all() {
  for (WorkItem& item : pending_items()) execute(item);
}

/// The host finds what a copy has written, and is told where it changed what one was reading.
void complete(WorkItem& item) {
  const bool was_read = std::exchange(item.reads_pinned, false);
  if (std::exchange(item.writes_pinned, false))
    std::memcpy(item.to, item.snapshot.data(), item.bytes);
  ensure(
      !was_read || std::memcmp(item.from, item.snapshot.data(), item.bytes) == 0,
      "emulated device: {} bytes of pinned memory changed before the copy from them was waited for",
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

/// Copies may follow each other through the same pinned memory without the host: those that the
/// stream comes behind are made and handed over, before it reads what they write, or writes what
/// they write or read.
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
