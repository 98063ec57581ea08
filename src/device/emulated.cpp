#include "emulated.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "memory_map.hpp"
#include "trireme/base/check.hpp"

namespace trireme::emulated {
namespace {

constexpr int late = 0xA5;  // what stands in pinned memory that a copy has not come to yet

/// A copy that the host has not waited for.
struct Pending {
  std::uint64_t number = 0;
  void* to = nullptr;                  // pinned memory that gets `values` when the host waits; null: `from` was read
  const void* from = nullptr;
  std::vector<std::byte> values;
};

struct Queue {
  std::uint64_t given = 0;
  std::deque<Pending> pending;
};

std::mutex mutex;
std::atomic<int> opened{0};

/// By stream; null is a device's own.
std::map<void*, Queue>& queues() {
  static auto* const all = new std::map<void*, Queue>;
  return *all;
}

void protect(const MemoryRange& range, int protection) {
  ensure(mprotect(range.begin, range.bytes, protection) == 0, "emulated device: the protection of its memory could not be changed: {}", std::strerror(errno));
}

}  // namespace

std::byte* allocate(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, opened > 0 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

void free(std::byte* data, std::size_t bytes) { munmap(data, bytes); }

void* make_stream() { return new char; }

void end_stream(void* stream) {
  const std::lock_guard lock(mutex);
  queues().erase(stream);
  delete static_cast<char*>(stream);
}

std::uint64_t now(void* stream) {
  const std::lock_guard lock(mutex);
  return queues()[stream].given;
}

void wait(void* stream, std::uint64_t until) {
  const std::lock_guard lock(mutex);
  Queue& queue = queues()[stream];
  for (; !queue.pending.empty() && queue.pending.front().number <= until; queue.pending.pop_front()) {
    const Pending& copy = queue.pending.front();
    if (copy.to != nullptr) std::memcpy(copy.to, copy.values.data(), copy.values.size());
    else ensure(std::memcmp(copy.from, copy.values.data(), copy.values.size()) == 0, "emulated device: {} bytes of pinned memory changed before the copy from them was waited for", copy.values.size());
  }
}

void copy(void* stream, void* to, const void* from, std::size_t bytes) {
  const bool late_write = is_pinned(to), late_read = is_pinned(from);
  open();
  const auto* values = static_cast<const std::byte*>(from);
  Pending pending{.to = late_write ? to : nullptr, .from = from, .values = {}};
  if (late_write || late_read) pending.values.assign(values, values + bytes);
  if (late_write) std::memset(to, late, bytes);
  else std::memcpy(to, from, bytes);
  close();
  const std::lock_guard lock(mutex);
  Queue& queue = queues()[stream];
  pending.number = ++queue.given;
  if (late_write || late_read) queue.pending.push_back(std::move(pending));
}

void open() {
  const std::lock_guard lock(mutex);
  if (++opened > 1) return;
  for (const MemoryRange& range : ranges_of(DeviceKind::emulated)) protect(range, PROT_READ | PROT_WRITE);
}

void close() {
  const std::lock_guard lock(mutex);
  if (--opened > 0) return;
  for (const MemoryRange& range : ranges_of(DeviceKind::emulated)) protect(range, PROT_NONE);
}

}  // namespace trireme::emulated
