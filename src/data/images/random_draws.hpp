// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

namespace trireme::data {

// There are three conversions of random bits to numbers in [0, 1). None may take the place of
// another one: runs that resume would draw other samples, crops and colors.
//
//   uniform_unit()        24 bits, a float; base/philox.hpp. Kernels, and factors of color_jitter
//   unit()                32 bits. Positions and areas of rectangles
//   unit_of_64_bits()     53 bits. Blocks of data.verify; those of uniform_at() of base/philox.hpp

/// Returns a number in [0, 1) with 32 random bits.
inline double unit(std::uint32_t word) { return static_cast<double>(word) * 0x1p-32; }

/// Returns a number in [0, 1) with the upper 53 of 64 random bits.
inline double unit_of_64_bits(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Returns an integer in [0, count), for counts far below 2^32.
inline std::int64_t integer_below(std::int64_t count, std::uint32_t word) {
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(count) * word) >> 32);
}

/// Rounds to the nearest integer, halves to even ones.
inline std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}

}  // namespace trireme::data
