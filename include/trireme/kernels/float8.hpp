// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme {

// Storage types of 8 bits (Micikevicius et al. 2022, "FP8 formats for deep learning"), used for
// operands of products only.
// Conversions round to nearest, ties to even. A finite number beyond the range becomes the largest
// finite one. Infinity and NaN become NaN, so that neither is lost.

/// 4 exponent bits, 3 mantissa bits: 4 significant bits from 2^-6 up, multiples of 2^-9 below. The
/// largest number is 448. There is no infinity.
struct Float8E4M3 {
  std::uint8_t bits;
  static constexpr std::uint32_t bias = 7, mantissa = 3, greatest = 0x7E, nan = 0x7F;
};

/// 5 exponent bits, 2 mantissa bits: 3 significant bits from 2^-14 up, multiples of 2^-16 below.
/// The largest finite number is 57344.
struct Float8E5M2 {
  std::uint8_t bits;
  static constexpr std::uint32_t bias = 15, mantissa = 2, greatest = 0x7B, nan = 0x7F;
};

/// Returns the code of T nearest to `value`. No branches: loops vectorize.
template <class T>
TRIREME_FUNCTION T to_float8(float value) {
  constexpr std::uint32_t infinity = 0x7F800000u, cut = 23 - T::mantissa,
                          other_bias = (127u - T::bias) << 23, normal = (127u - T::bias + 1) << 23;
  // A float32 whose unit in the last place is the smallest subnormal number of T.
  constexpr std::uint32_t coarse = (127u - T::bias + 1 + cut) << 23;
  const std::uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t rounded =
      (magnitude - other_bias + ((1u << (cut - 1)) - 1u) + ((magnitude >> cut) & 1u)) >> cut;
  // The addition rounds subnormal results.
  const std::uint32_t small =
      bits_of_float(float_of_bits(magnitude) + float_of_bits(coarse)) - coarse;
  const std::uint32_t finite = magnitude < normal      ? small
                               : rounded < T::greatest ? rounded
                                                       : T::greatest;
  return {static_cast<std::uint8_t>((magnitude >= infinity ? T::nan : finite) |
                                    ((bits >> 24) & 0x80u))};
}

/// Returns the codes of two numbers; the code of `low` comes first in memory.
template <class T>
TRIREME_FUNCTION std::uint32_t pack_float8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  // The instruction saturates infinity. x * 0 + x is NaN for an infinite x and x otherwise.
  const float known_low = fmaf(low, 0.0f, low), known_high = fmaf(high, 0.0f, high);
  if constexpr (std::is_same_v<T, Float8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(known_high), "f"(known_low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(known_high), "f"(known_low));
  }
  return pair;
#else
  return to_float8<T>(low).bits | static_cast<std::uint32_t>(to_float8<T>(high).bits) << 8;
#endif
}

/// Returns the exact value of a code.
template <class T>
TRIREME_FUNCTION float float8_to_float(T value) {
  constexpr std::uint32_t cut = 23 - T::mantissa, other_bias = (127u - T::bias) << 23;
  const std::uint32_t shifted = static_cast<std::uint32_t>(value.bits & 0x7Fu) << cut,
                      moved = shifted + other_bias;
  // Below the smallest normal number the mantissa has no implicit leading one. The subtraction
  // removes the one that the next exponent adds.
  const std::uint32_t small =
      bits_of_float(float_of_bits(moved + (1u << 23)) - float_of_bits(other_bias + (1u << 23)));
  const std::uint32_t beyond =
      T::greatest == 0x7B && (value.bits & 0x7Fu) == 0x7Cu ? 0x7F800000u : 0x7FC00000u;
  const std::uint32_t magnitude = (value.bits & 0x7Fu) > T::greatest ? beyond
                                  : shifted < (1u << 23)             ? small
                                                                     : moved;
  return float_of_bits(magnitude | static_cast<std::uint32_t>(value.bits & 0x80u) << 24);
}
TRIREME_FUNCTION float to_float(Float8E4M3 value) { return float8_to_float(value); }
TRIREME_FUNCTION float to_float(Float8E5M2 value) { return float8_to_float(value); }

}  // namespace trireme

namespace trireme::kernels {

/// Scale of a float8 tensor, in the memory of its stream: code = scale * number. Both fields are
/// powers of two, so scaling rounds nothing.
struct Float8Scale {
  float inverse, scale;
};

/// Upper bound of the partial maxima that float8_scale() stores.
constexpr std::int64_t float8_partial_maxima = 512;

/// Arguments of float8_scale(). *scale = the largest power of two in [2^-126, 2^126] under which
/// all of x stays in the range of T.
/// The scale is 1 if x is all zeros or has an infinity or a NaN. `maxima` [float8_partial_maxima]
/// is overwritten.
struct Float8ScaleArgs {
  const BFloat16* x;
  std::int64_t count;
  float* maxima;
  Float8Scale* scale;
};
/// Enqueues two launches: partial maxima of |x|, then their maximum. Reads x once.
template <class T>
void float8_scale(const Stream&, const Float8ScaleArgs&);

/// Arguments of float8_cast(): codes = x [rows, columns] * scale as T, row by row or, if
/// `transposed`, column by column.
/// If transposed, rows and columns must be multiples of 16 and both pointers aligned to 16 bytes.
struct Float8Cast {
  const BFloat16* x;
  std::int64_t rows, columns;
  const Float8Scale* scale;
  void* codes;
  bool transposed;
};
/// Enqueues the cast: 2 bytes read and 1 byte written per number.
template <class T>
void float8_cast(const Stream&, const Float8Cast&);

/// Arguments of float8_round(): y = the values of x's codes. y may be x.
struct Float8Round {
  const BFloat16* x;
  std::int64_t count;
  const Float8Scale* scale;
  BFloat16* y;
};
/// Enqueues the rounding of x to T and back.
template <class T>
void float8_round(const Stream&, const Float8Round&);

}  // namespace trireme::kernels
