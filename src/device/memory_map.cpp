// SPDX-License-Identifier: Apache-2.0
#include "memory_map.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "trireme/device/memory.hpp"

namespace trireme {
namespace {

std::mutex mutex;

/// Blocks by start address.
std::map<const std::byte*, MemoryRange>& ranges() {
  // Never destroyed: static objects free memory after static destructors have run here.
  static auto* const all = new std::map<const std::byte*, MemoryRange>;
  return *all;
}

std::optional<MemoryRange> range_of(const void* address) {
  const auto* byte = static_cast<const std::byte*>(address);
  const std::lock_guard lock(mutex);
  const auto after = ranges().upper_bound(byte);
  if (after == ranges().begin()) return {};
  const MemoryRange& range = std::prev(after)->second;
  if (byte >= range.begin + range.bytes) return {};
  return range;
}

}  // namespace

void register_range(const MemoryRange& range) {
  const std::lock_guard lock(mutex);
  ranges()[range.begin] = range;
}

void unregister_range(const std::byte* begin) {
  const std::lock_guard lock(mutex);
  ranges().erase(begin);
}

std::vector<MemoryRange> ranges_of(DeviceKind kind) {
  const std::lock_guard lock(mutex);
  std::vector<MemoryRange> found;
  for (const auto& [begin, range] : ranges()) {
    if (range.device.kind == kind) found.push_back(range);
  }
  return found;
}

bool is_pinned(const void* address) {
  const std::optional<MemoryRange> range = range_of(address);
  return range && range->device.kind == DeviceKind::cpu;
}

Device device_of(const void* address) {
  const std::optional<MemoryRange> range = range_of(address);
  return range ? range->device : Device{DeviceKind::cpu, 0};
}

std::vector<std::span<std::byte>> memory_of(Device device) {
  std::vector<std::span<std::byte>> found;
  for (const MemoryRange& range : ranges_of(device.kind)) {
    if (range.device == device) found.emplace_back(range.begin, range.bytes);
  }
  return found;
}

}  // namespace trireme
