// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "launch.hpp"
#include "trireme/kernels/types.hpp"

// Rounds float32 to 16-bit types by AVX-512 instructions. One instruction rounds 16 numbers; the
// integer form in types.hpp takes about ten.
// nvcc's front end cannot read the intrinsics, so host kernels in CUDA builds use the integer form.
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__CUDACC__)
#include <immintrin.h>
#define TRIREME_ROUNDS_BY_INSTRUCTION 1
#else
#define TRIREME_ROUNDS_BY_INSTRUCTION 0
#endif

namespace trireme::kernels {

#if TRIREME_ROUNDS_BY_INSTRUCTION
/// Rounds 16 numbers to nearest, ties to even, if `exists`.
template <class T>
struct Rounding {
  static constexpr bool exists = false;
};
#if defined(__AVX512BF16__)
/// The instruction flushes subnormal numbers (below 1.2e-38) to 0.
template <>
struct Rounding<BFloat16> {
  static constexpr bool exists = true;
  static __m256i of(__m512 values) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)); }
};
#endif
template <>
struct Rounding<Float16> {
  static constexpr bool exists = true;
  static __m256i of(__m512 values) {
    return _mm512_maskz_cvtps_ph(0xFFFF, values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};
#else
template <class T>
struct Rounding {
  static constexpr bool exists = false;
};
#endif

/// True if a host loop should leave its results in float32 for round_lanes() instead of rounding
/// each number itself.
template <class Space, class T>
constexpr bool rounds_lanes = on_host<Space> && Rounding<T>::exists;

/// to[i] = values[i], rounded to nearest, ties to even, for i < count. Call it only if rounds_lanes
/// is true.
template <class T>
void round_lanes([[maybe_unused]] const float* values, [[maybe_unused]] T* to,
                 [[maybe_unused]] int count) {
#if TRIREME_ROUNDS_BY_INSTRUCTION
  for (int i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xFFFFu : (1u << (count - i)) - 1u);
    _mm256_mask_storeu_epi16(to + i, mask,
                             Rounding<T>::of(_mm512_maskz_loadu_ps(mask, values + i)));
  }
#endif
}

}  // namespace trireme::kernels
