#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme {

// Numbers of 8 bits (Micikevicius et al. 2022, "FP8 formats for deep learning"), operands of
// products only. To the nearest, ties to even; what is finite and beyond the greatest number
// becomes that; infinity and NaN become NaN, so that neither is lost.

/// 4 bits of exponent, 3 of mantissa: 4 bits of precision from 2^-6 on, below that multiples of
/// 2^-9; the greatest is 448. Without infinities.
struct Float8E4M3 {
  std::uint8_t bits;
  static constexpr std::uint32_t bias = 7, mantissa = 3, greatest = 0x7E, nan = 0x7F;
};

/// 5 and 2: 3 bits of precision from 2^-14 on, below that multiples of 2^-16; the greatest is
/// 57344.
struct Float8E5M2 {
  std::uint8_t bits;
  static constexpr std::uint32_t bias = 15, mantissa = 2, greatest = 0x7B, nan = 0x7F;
};

template <class T>
TRIREME_FUNCTION T to_float8(float value) {
  constexpr std::uint32_t infinity = 0x7F800000u, cut = 23 - T::mantissa,
                          other_bias = (127u - T::bias) << 23, normal = (127u - T::bias + 1) << 23;
  constexpr std::uint32_t coarse =
      (127u - T::bias + 1 + cut)
      << 23;  // a float32 with the units of the numbers below the smallest normal one
  const std::uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t rounded =
      (magnitude - other_bias + ((1u << (cut - 1)) - 1u) + ((magnitude >> cut) & 1u)) >> cut;
  const std::uint32_t small = bits_of_float(float_of_bits(magnitude) + float_of_bits(coarse)) -
                              coarse;  // the addition rounds
  const std::uint32_t finite = magnitude < normal      ? small
                               : rounded < T::greatest ? rounded
                                                       : T::greatest;
  return {static_cast<std::uint8_t>((magnitude >= infinity ? T::nan : finite) |
                                    ((bits >> 24) & 0x80u))};
}

/// The codes of two numbers, of which that of `low` stands first in memory.
template <class T>
TRIREME_FUNCTION std::uint32_t pack_float8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  const float known_low = fmaf(low, 0.0f, low),
              known_high = fmaf(
                  high, 0.0f, high);  // of infinity the instruction would make the greatest number
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

template <class T>
TRIREME_FUNCTION float float8_to_float(T value) {
  constexpr std::uint32_t cut = 23 - T::mantissa, other_bias = (127u - T::bias) << 23;
  const std::uint32_t shifted = static_cast<std::uint32_t>(value.bits & 0x7Fu) << cut,
                      moved = shifted + other_bias;
  // Below the smallest normal number the mantissa has no leading one: with the next exponent it
  // gets one, which is then taken off.
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

/// What a float8 tensor is scaled by, in the memory of its stream: code = scale * number. Both are
/// powers of two, so that scaling rounds nothing.
struct Float8Scale {
  float inverse, scale;
};

/// Numbers of which float8_scale() makes maxima of its own.
constexpr std::int64_t float8_partial_maxima = 512;

/// scale (=) the greatest power of two, of 2^-126 to 2^126, under which all of x stay within T; 1
/// where x is 0 throughout, or has an infinity or a NaN. `maxima` [float8_pieces] is overwritten.
struct Float8ScaleArgs {
  const BFloat16* x;
  std::int64_t count;
  float* maxima;
  Float8Scale* scale;
};
template <class T>
void float8_scale(const Stream&, const Float8ScaleArgs&);

/// codes = x [rows, columns] scaled, as T: row by row, or (`turned`) column by column. Turned ones:
/// rows and columns are multiples of 16, and both places begin at multiples of 16 bytes.
struct Float8Cast {
  const BFloat16* x;
  std::int64_t rows, columns;
  const Float8Scale* scale;
  void* codes;
  bool transposed;
};
template <class T>
void float8_cast(const Stream&, const Float8Cast&);

/// y = the numbers that x's codes stand for. y may be x.
struct Float8Round {
  const BFloat16* x;
  std::int64_t count;
  const Float8Scale* scale;
  BFloat16* y;
};
template <class T>
void float8_round(const Stream&, const Float8Round&);

}  // namespace trireme::kernels
