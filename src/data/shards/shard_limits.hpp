// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace trireme::data {

// Pixels of a side. No image is larger, and products of extents cannot overflow.
inline constexpr std::int64_t max_extent = 1 << 20;
inline constexpr std::int64_t max_channels = 1024;
inline constexpr std::size_t max_classes = 1 << 24;
// Numbers of the input, and of the target, of a sample. So products with their sizes cannot
// overflow.
inline constexpr std::int64_t max_input_numbers = std::int64_t{1} << 31;
inline constexpr std::int64_t max_target_numbers = std::int64_t{1} << 20;
inline constexpr std::int64_t max_map_numbers = std::int64_t{1} << 28;  ///< of a target
// Tokens are int32 in memory.
inline constexpr std::int64_t max_vocabulary = std::numeric_limits<std::int32_t>::max();

// Memory for one image in a catalog, beside its names.
inline constexpr std::int64_t catalog_entry_bytes = 256;

/// Returns whether a compressed file may need so much memory for the list of its images. Equal
/// images and names are packed to a thousandth or less, so a small file could list gigabytes.
/// Images of real data sets take hundreds of bytes each.
inline bool may_list(std::int64_t listed_bytes, std::int64_t file_bytes) {
  constexpr std::int64_t always_allowed_bytes = std::int64_t{256} << 20, ratio = 16;
  return listed_bytes <= always_allowed_bytes || listed_bytes / ratio <= file_bytes;
}

}  // namespace trireme::data
