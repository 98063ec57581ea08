#pragma once

#include <cstdint>
#include <cstring>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION

namespace trireme {

/// The upper half of a float32: storage only, arithmetic is in float. Written without branches, so that loops over it vectorise.
struct BFloat16 {
  std::uint16_t bits;
};

TRIREME_FUNCTION float to_float(float value) { return value; }
TRIREME_FUNCTION float to_float(BFloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/// To the nearest, ties to even; overflow goes to infinity, a NaN stays a (quiet) NaN.
TRIREME_FUNCTION BFloat16 to_bfloat16(float value) {
#if defined(__CUDA_ARCH__)
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
#endif
}

template <class T>
TRIREME_FUNCTION T from_float(float value);
template <>
TRIREME_FUNCTION float from_float<float>(float value) {
  return value;
}
template <>
TRIREME_FUNCTION BFloat16 from_float<BFloat16>(float value) {
  return to_bfloat16(value);
}

}  // namespace trireme
