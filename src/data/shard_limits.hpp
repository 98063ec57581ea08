#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace trireme::data {

// Pixels of a side. No image is larger, and products of extents cannot overflow.
inline constexpr std::int64_t max_extent = 1 << 20;
// The limit of the kernel that prepares images.
inline constexpr std::int64_t max_channels = 4;
inline constexpr std::size_t max_classes = 1 << 24;
// Tokens are int32 in memory.
inline constexpr std::int64_t max_vocabulary = std::numeric_limits<std::int32_t>::max();

}  // namespace trireme::data
