#pragma once

#include <type_traits>

#include "launch.hpp"
#include "trireme/kernels/types.hpp"

// The processor's own rounding to bfloat16 takes one instruction for 16 numbers, the one in integers (types.hpp) some ten. nvcc's front end does not
// read its intrinsics; there the host's kernels keep to integers.
#if defined(__AVX512BF16__) && !defined(__CUDACC__)
#include <immintrin.h>
#define TRIREME_ROUNDS_BY_INSTRUCTION 1
#else
#define TRIREME_ROUNDS_BY_INSTRUCTION 0
#endif

namespace trireme::kernels {

/// Whether a loop over lanes leaves its results in float32 for round_lanes() in place of rounding each by itself.
template <class Space, class T>
constexpr bool rounds_lanes = TRIREME_ROUNDS_BY_INSTRUCTION != 0 && on_host<Space> && std::is_same_v<T, BFloat16>;

#if TRIREME_ROUNDS_BY_INSTRUCTION
/// to[i] = values[i] to the nearest, ties to even, for i < count. Denormal numbers (below 1.2e-38) become 0, wherever they stand.
inline void round_lanes(const float* values, BFloat16* to, int count) {
  for (int i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xFFFFu : (1u << (count - i)) - 1u);
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, values + i));
    _mm256_mask_storeu_epi16(to + i, mask, reinterpret_cast<const __m256i&>(rounded));
  }
}
#else
inline void round_lanes(const float*, BFloat16*, int) {}  // never called
#endif

}  // namespace trireme::kernels
