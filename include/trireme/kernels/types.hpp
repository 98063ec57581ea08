// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION

namespace trireme {

// Storage types of 16 bits and their conversions from and to float32; all arithmetic is in float32.
// Conversions round to nearest, ties to even. Overflow becomes infinity; a NaN stays a quiet NaN.
// The host code has no branches, so loops over it vectorize; a device uses its own instructions.

/// bfloat16: the upper 16 bits of a float32.
struct BFloat16 {
  std::uint16_t bits;
};

/// IEEE 754 binary16: 11 significant bits from 2^-14 up, multiples of 2^-24 below. The largest
/// finite number is 65504.
struct Float16 {
  std::uint16_t bits;
};

/// Returns the float32 with these bits.
TRIREME_FUNCTION float float_of_bits(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
/// Returns the bits of a float32.
TRIREME_FUNCTION std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

TRIREME_FUNCTION float to_float(float value) { return value; }
TRIREME_FUNCTION float to_float(BFloat16 value) {
  return float_of_bits(static_cast<std::uint32_t>(value.bits) << 16);
}
TRIREME_FUNCTION float to_float(Float16 value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  // `exponents`: the exponent field of float32. `other_bias`: the difference of the two exponent
  // biases, in that field.
  constexpr std::uint32_t exponents = 0x7C00u << 13, other_bias = (127u - 15u) << 23;
  const std::uint32_t shifted = static_cast<std::uint32_t>(value.bits & 0x7FFFu) << 13,
                      exponent = shifted & exponents;
  // Infinity and NaN use the largest exponent in both formats: they move by the bias twice.
  const std::uint32_t moved = shifted + other_bias + (exponent == exponents ? other_bias : 0u);
  // Below 2^-14 the mantissa has no implicit leading one. The subtraction removes the one that the
  // next exponent adds.
  const std::uint32_t small =
      bits_of_float(float_of_bits(shifted + other_bias + (1u << 23)) - 0x1p-14f);
  return float_of_bits((exponent == 0 ? small : moved) |
                       static_cast<std::uint32_t>(value.bits & 0x8000u) << 16);
#endif
}

TRIREME_FUNCTION BFloat16 to_bfloat16(float value) {
#if defined(__CUDA_ARCH__)
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
#endif
}

TRIREME_FUNCTION Float16 to_float16(float value) {
#if defined(__CUDA_ARCH__)
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  constexpr std::uint32_t infinity = 0x7F800000u, too_large = (127u + 16u) << 23,
                          normal = (127u - 14u) << 23, other_bias = (127u - 15u) << 23;
  const std::uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFFu;
  // A magnitude from 65520 on also rounds to infinity here.
  const std::uint32_t rounded = (magnitude - other_bias + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // float32 numbers just above 1/2 are multiples of 2^-24, as subnormal float16 numbers are: the
  // addition rounds.
  const std::uint32_t small = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000u;
  const std::uint32_t beyond =
      magnitude > infinity ? 0x7E00u | ((magnitude >> 13) & 0x3FFu) : 0x7C00u;
  const std::uint32_t result = magnitude >= too_large ? beyond
                               : magnitude < normal   ? small
                                                      : rounded;
  return {static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u))};
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
template <>
TRIREME_FUNCTION Float16 from_float<Float16>(float value) {
  return to_float16(value);
}

/// Element types that ops read.
enum class ElementType : std::uint8_t { float32, bfloat16, float16 };

/// Calls run(T()) with the C++ type that `type` names.
template <class Run>
TRIREME_FUNCTION void with_type(ElementType type, const Run& run) {
  switch (type) {
    case ElementType::float32: return run(float());
    case ElementType::bfloat16: return run(BFloat16());
    case ElementType::float16: return run(Float16());
  }
}

/// Returns the bytes of one element.
TRIREME_FUNCTION std::size_t size_of(ElementType type) {
  return type == ElementType::float32 ? sizeof(float) : sizeof(Float16);
}

}  // namespace trireme
