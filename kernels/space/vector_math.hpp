// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace trireme::kernels {

// Device code can read constants but cannot call numeric_limits.
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Returns exp(x) for x <= 0, without branches or calls, so that loops over it vectorize. A NaN
/// stays a NaN.
/// - Below -87 the result is 0; the true value is smaller than the smallest normal number.
/// - Host: within 2 units in the last place. The polynomial is that of Cephes' expf (Moshier 1989).
/// - Device: within 2.5 units. The base-2 instruction has an error of 2 units; the factor (1 +
///   rest) corrects the rounding of its argument.
KOKKOS_INLINE_FUNCTION float fast_exp(float x) {
  constexpr float log2_e = 1.44269504f;
#if defined(__CUDA_ARCH__)
  constexpr float ln2_high = 0.693147182f, ln2_low = -1.90465432e-9f;
  float clamped, power;
  // The lower limit keeps the remainder of minus infinity finite.
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(clamped) : "f"(x), "f"(-140.0f));
  const float exponent = clamped * log2_e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  const float rest = fmaf(exponent, -ln2_low, fmaf(exponent, -ln2_high, clamped));
  return fmaf(power, rest, power);
#else
  constexpr float lowest = -87.0f;
  // The high part has 9 bits, so n * high is exact.
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
  constexpr float to_integer = 12582912.0f;
  const float clamped = x < lowest ? lowest : x;
  const float shifted = clamped * log2_e + to_integer;
  const float n = shifted - to_integer;
  const float r = clamped - n * ln2_high - n * ln2_low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  std::uint32_t exponent;
  memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent - 0x4B400000u + 127u) << 23;
  float power;
  memcpy(&power, &exponent, sizeof power);
  return x < lowest ? 0.0f : p * power;
#endif
}

/// Returns 1 / x. Host: rounded to nearest. Device: within one unit in the last place, and 0 if the
/// result is below the smallest normal number.
KOKKOS_INLINE_FUNCTION float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}

}  // namespace trireme::kernels
