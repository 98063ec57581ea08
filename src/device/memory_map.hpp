// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/device/device.hpp"

namespace trireme {

/// A block of device memory or pinned host memory.
struct MemoryRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  Device device;
};

/// Adds a block to the map of this process. The map has few entries. All functions here may be
/// called from any thread.
void register_range(const MemoryRange& range);
/// Removes the block that starts at `begin`.
void unregister_range(const std::byte* begin);
/// Returns all blocks of this kind.
std::vector<MemoryRange> ranges_of(DeviceKind kind);
/// Returns whether the byte at `address` is in pinned host memory.
bool is_pinned(const void* address);

}  // namespace trireme
