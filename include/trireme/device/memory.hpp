#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/device/device.hpp"

namespace trireme {

/// All Allocations on a CUDA or emulated device at this moment.
std::vector<std::span<std::byte>> memory_of(Device device);

}  // namespace trireme
