#pragma once

#include <cstddef>
#include <vector>

#include "trireme/device/device.hpp"

namespace trireme {

/// A block of memory that is not the ordinary host's: a device's, or pinned.
struct MemoryRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  Device device;
};

/// All such blocks of this process; they are few. From any thread.
void register_range(const MemoryRange& range);
void unregister_range(const std::byte* begin);
std::vector<MemoryRange> ranges_of(DeviceKind kind);
/// Whether the byte lies in pinned host memory.
bool is_pinned(const void* address);

}  // namespace trireme
