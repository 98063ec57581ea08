#pragma once

// What the kernels of the cross-entropy, whole and split over ranks, have in common: how a row of logits is walked.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <limits>

#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

inline constexpr int lanes = 16;             // separate sums, so that their order is written down and not left to the compiler
inline constexpr std::int64_t block = 1024;  // logits that one lane's float32 sums cover: 64 a lane, then on in double

// Named here: a device function reads constants, it cannot call numeric_limits.
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Of the logits x [0, count), count > 0.
template <class T>
KOKKOS_FUNCTION float largest_of(const T* x, std::int64_t count) {
  float largest[lanes];
  for (int lane = 0; lane < lanes; ++lane) largest[lane] = to_float(x[0]);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) {
      const float value = to_float(x[i + lane]);
      largest[lane] = value > largest[lane] ? value : largest[lane];
    }
  }
  for (; i < count; ++i) largest[0] = to_float(x[i]) > largest[0] ? to_float(x[i]) : largest[0];
  for (int lane = 1; lane < lanes; ++lane) largest[0] = largest[lane] > largest[0] ? largest[lane] : largest[0];
  return largest[0];
}

}  // namespace trireme::kernels
