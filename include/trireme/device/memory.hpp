// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/device/device.hpp"

namespace trireme {

/// Returns all Allocations that exist on a CUDA or emulated device. NCCL registers them for
/// transfers without a copy.
std::vector<std::span<std::byte>> memory_of(Device device);

}  // namespace trireme
