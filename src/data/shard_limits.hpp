#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace trireme::data {

// Pixels of a side. No image is larger, and products of extents cannot overflow.
inline constexpr std::int64_t max_extent = 1 << 20;
inline constexpr std::int64_t max_channels = 1024;
inline constexpr std::size_t max_classes = 1 << 24;
// Tokens are int32 in memory.
inline constexpr std::int64_t max_vocabulary = std::numeric_limits<std::int32_t>::max();

}  // namespace trireme::data
