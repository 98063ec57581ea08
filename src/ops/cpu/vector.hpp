// SPDX-License-Identifier: Apache-2.0
#pragma once

// Vectors of float32 in the GCC and Clang extension, as wide as the registers of the target
// processor.

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace trireme::ops::cpu {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
constexpr int lanes = vector_bytes / 4;

using Vector = float __attribute__((vector_size(vector_bytes)));
using IntVector = std::int32_t __attribute__((vector_size(vector_bytes)));
using WordVector = std::uint32_t __attribute__((vector_size(vector_bytes)));

inline Vector broadcast(float value) { return value - Vector{}; }

template <class V = Vector>
inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class V>
inline void store(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

/// Returns the products of the lower 32 bits of a's numbers and b.
using LongVector = std::uint64_t __attribute__((vector_size(vector_bytes)));
inline LongVector multiply_low_halves(LongVector a, std::uint32_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<LongVector>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<LongVector>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
#else
  return (a & 0xFFFFFFFFu) * b;
#endif
}

inline Vector elementwise_max(Vector a, Vector b) { return a > b ? a : b; }

/// Returns 2^x for x <= 0, within 2 units in the last place down to x = -126, and 0 below. A NaN
/// stays a NaN. The polynomial is the minimax one of 2^r for |r| <= 1/2 (relative error 1.9e-9).
inline Vector exp2_of(Vector x) {
  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
  constexpr float to_integer = 12582912.0f;
  const Vector lowest = broadcast(-126.0f);
  const Vector clamped = x < lowest ? lowest : x;
  const Vector shifted = clamped + to_integer;
  const Vector r = clamped - (shifted - to_integer);
  Vector p = broadcast(0.0001534581242594868f);
  p = p * r + 0.0013399930903688073f;
  p = p * r + 0.009618489071726799f;
  p = p * r + 0.05550328642129898f;
  p = p * r + 0.24022646248340607f;
  p = p * r + 0.6931471824645996f;
  p = p * r + 1.0f;
  const Vector power = reinterpret_cast<Vector>(reinterpret_cast<IntVector>(p) +
                                                (reinterpret_cast<IntVector>(shifted) << 23));
  return x < lowest ? Vector{} : power;
}

}  // namespace trireme::ops::cpu
