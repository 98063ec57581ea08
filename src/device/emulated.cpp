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

constexpr int late = 0xA5;  // what stands in pinned memory that a copy has not come to yet
constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

/// What a stream was given: a copy, or (bytes = 0) to go on behind another stream.
struct Work {
  void* stream = nullptr;
  std::uint64_t number = 0;

  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
  std::vector<std::byte> values = {};  // of a source on the host as they were when the copy was
                                       // given; of a pinned target, those that the host will find
  bool writes_pinned = false, reads_pinned = false;  // until the host has waited

  void* other = nullptr;
  std::uint64_t until = 0;

  bool made = false;     // by the device
  bool awaited = false;  // by the host

  bool touches_pinned(const std::byte* begin, std::size_t size) const {
    const auto overlaps = [&](const std::byte* mine) {
      return mine < begin + size && begin < mine + bytes;
    };
    return (writes_pinned && overlaps(to)) || (reads_pinned && overlaps(from));
  }
  bool is_over() const { return awaited || (made && bytes > 0 && !writes_pinned && !reads_pinned); }
};

std::mutex mutex;  // held by whoever touches what follows
int opened = 0;
std::uint64_t given = 0;
std::uint64_t waited = 0;
std::uintptr_t streams = 0;

/// In the order in which it was given.
std::list<Work>& works() {
  static auto* const list =
      new std::list<Work>;  // never destroyed: statics give memory back after it would be
  return *list;
}

void protect_all(int protection) {
  for (const MemoryRange& range : ranges_of(DeviceKind::emulated))
    ensure(mprotect(range.begin, range.bytes, protection) == 0,
           "emulated device: the protection of its memory could not be changed: {}",
           std::strerror(errno));
}

void open_memory() {
  if (opened == 0) protect_all(PROT_READ | PROT_WRITE);
  ++opened;
}

void close_memory() {
  if (--opened == 0) protect_all(PROT_NONE);
}

struct OpenMemory {
  OpenMemory() { open_memory(); }
  ~OpenMemory() { close_memory(); }
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

void make(void* stream, std::uint64_t until);

void make(Work& work) {
  if (work.made) return;
  work.made = true;
  if (work.bytes == 0) return make(work.other, work.until);
  if (!work.writes_pinned)
    std::memcpy(work.to, work.values.empty() ? work.from : work.values.data(), work.bytes);
  else if (work.values.empty())
    work.values.assign(work.from, work.from + work.bytes);
}

/// The device makes what the stream was given until then. What it comes behind has a smaller
/// number, so this ends.
void make(void* stream, std::uint64_t until) {
  for (Work& work : works()) {
    if (work.stream == stream && work.number <= until) make(work);
  }
}

void make_all() {
  for (Work& work : works()) make(work);
}

/// The host finds what a copy has written, and is told where it changed what one was reading.
void hand_over(Work& work) {
  const bool was_read = std::exchange(work.reads_pinned, false);
  if (std::exchange(work.writes_pinned, false))
    std::memcpy(work.to, work.values.data(), work.bytes);
  ensure(
      !was_read || std::memcmp(work.from, work.values.data(), work.bytes) == 0,
      "emulated device: {} bytes of pinned memory changed before the copy from them was waited for",
      work.bytes);
}

void hand_over(void* stream, std::uint64_t until) {
  for (Work& work : works()) {
    if (work.stream != stream || work.number > until || work.awaited) continue;
    work.awaited = true;
    if (work.bytes == 0)
      hand_over(work.other, work.until);
    else
      hand_over(work);
  }
}

void drop_what_is_over() {
  std::erase_if(works(), [](const Work& work) { return work.is_over(); });
}

void wait_for(void* stream, std::uint64_t until) {
  make(stream, until);
  hand_over(stream, until);
  drop_what_is_over();
}

/// Copies may follow each other through the same pinned memory without the host: those that the
/// stream comes behind are made and handed over, before it reads what they write, or writes what
/// they write or read.
void settle(void* stream, const std::byte* begin, std::size_t bytes, bool to_write) {
  const auto concerns = [&](const Work& work) {
    return (to_write || work.writes_pinned) && work.touches_pinned(begin, bytes);
  };
  if (std::none_of(works().begin(), works().end(), concerns)) return;
  make(stream, all);
  for (Work& work : works()) {
    if (work.made && concerns(work)) hand_over(work);
  }
}

}  // namespace

std::byte* allocate(Device device, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  void* data = mmap(nullptr, bytes, opened > 0 ? PROT_READ | PROT_WRITE : PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  remember_range({static_cast<std::byte*>(data), bytes, device});
  return static_cast<std::byte*>(data);
}

void free(std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (!works().empty()) {
    const OpenMemory memory;
    make_all();
  }
  forget_range(data);
  munmap(data, bytes);
}

void forget_pinned(const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (works().empty()) return;
  const OpenMemory memory;
  make_all();
  for (Work& work : works()) {
    if (work.touches_pinned(data, bytes)) work.writes_pinned = work.reads_pinned = false;
  }
  drop_what_is_over();
}

void* make_stream() {
  const std::lock_guard lock(mutex);
  return reinterpret_cast<void*>(++streams);
}

std::uint64_t now() {
  const std::lock_guard lock(mutex);
  return given;
}

void hold_back(void* stream, void* other, std::uint64_t until) {
  const std::lock_guard lock(mutex);
  const auto is_meant = [&](const Work& work) {
    return work.stream == other && work.number <= until;
  };
  if (stream == other || std::none_of(works().begin(), works().end(), is_meant)) return;
  works().push_back({.stream = stream, .number = ++given, .other = other, .until = until});
}

void wait(void* stream, std::uint64_t until) {
  const std::lock_guard lock(mutex);
  ++waited;
  if (works().empty()) return;
  const OpenMemory memory;
  wait_for(stream, until);
}

std::uint64_t waits() {
  const std::lock_guard lock(mutex);
  return waited;
}

void copy(void* stream, void* to, const void* from, std::size_t bytes) {
  const bool from_host = in_host_memory(device_of(from).kind),
             to_host = in_host_memory(device_of(to).kind);
  const std::lock_guard lock(mutex);
  const OpenMemory memory;
  Work work{.stream = stream,
            .to = static_cast<std::byte*>(to),
            .from = static_cast<const std::byte*>(from),
            .bytes = bytes};
  work.writes_pinned = is_pinned(to);
  work.reads_pinned = is_pinned(from);
  if (work.reads_pinned) settle(stream, work.from, bytes, false);
  if (work.writes_pinned) settle(stream, work.to, bytes, true);
  if (from_host) work.values.assign(work.from, work.from + bytes);
  if (work.writes_pinned) std::memset(to, late, bytes);
  work.number = ++given;
  if ((from_host && !work.reads_pinned) || (to_host && !work.writes_pinned)) ++waited;
  works().push_back(std::move(work));
  if (to_host && !is_pinned(to)) wait_for(stream, given);
}

void open(void* stream) {
  const std::lock_guard lock(mutex);
  open_memory();
  make(stream, all);
  drop_what_is_over();
}

void close() {
  const std::lock_guard lock(mutex);
  close_memory();
}

}  // namespace trireme::emulated
