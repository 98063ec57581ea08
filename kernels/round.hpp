#pragma once

#include <type_traits>

#include "launch.hpp"
#include "trireme/kernels/types.hpp"

// The processor's own rounding takes one instruction for 16 numbers, the one in integers
// (types.hpp) some ten. nvcc's front end does not read its intrinsics; there the host's kernels
// keep to integers.
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__CUDACC__)
#include <immintrin.h>
#define TRIREME_ROUNDS_BY_INSTRUCTION 1
#else
#define TRIREME_ROUNDS_BY_INSTRUCTION 0
#endif

namespace trireme::kernels {

#if TRIREME_ROUNDS_BY_INSTRUCTION
/// Sixteen numbers to the nearest, ties to even.
template <class T>
struct Rounding {
  static constexpr bool exists = false;
};
#if defined(__AVX512BF16__)
/// Denormal numbers (below 1.2e-38) become 0, wherever they stand.
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

/// Whether a loop over lanes leaves its results in float32 for round_lanes() in place of rounding
/// each by itself.
template <class Space, class T>
constexpr bool rounds_lanes = on_host<Space> && Rounding<T>::exists;

/// to[i] = values[i] to the nearest, ties to even, for i < count; where rounds_lanes.
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
