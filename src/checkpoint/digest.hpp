// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "trireme/base/philox.hpp"

namespace trireme::checkpoint {

/// Returns the contribution of one element to the digest of its tensor. `bits` are the bits of the
/// float32, `index` is its row-major index from 0.
inline std::uint64_t digest_term(std::uint32_t bits, std::uint64_t index) {
  return mix64(bits + (index + 1) * 0x9E3779B97F4A7C15ull);
}

/// Returns the contribution of elements [first, first + count), in file order. `values` (float32)
/// may be unaligned.
inline std::uint64_t digest_values(const void* values, std::uint64_t first, std::uint64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(values);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, bytes + 4 * i, 4);
    sum += digest_term(bits, first + i);
  }
  return sum;
}

}  // namespace trireme::checkpoint
