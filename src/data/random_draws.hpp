#pragma once

#include <cmath>
#include <cstdint>

namespace trireme::data {

/// Returns a number in [0, 1) with 32 random bits.
inline double unit(std::uint32_t word) { return static_cast<double>(word) * 0x1p-32; }

/// Returns an integer in [0, count), for counts far below 2^32.
inline std::int64_t integer_below(std::int64_t count, std::uint32_t word) {
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(count) * word) >> 32);
}

/// Rounds to the nearest integer, halves to even ones.
inline std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}

}  // namespace trireme::data
