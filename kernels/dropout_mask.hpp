// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include "trireme/base/philox.hpp"

namespace trireme::kernels {

/// Writes the uniform numbers in [0, 1) of elements [4 * first, 4 * (first + calls)) under `key`:
/// element e has uniform_unit(philox(key, e / 4, 0).word[e % 4]).
/// Runs the rounds of Philox (base/philox.hpp) for all calls side by side, so that they vectorize.
template <int calls>
KOKKOS_INLINE_FUNCTION void draw_uniform(std::uint64_t key, std::uint64_t first, float* numbers) {
  std::uint32_t c0[calls], c1[calls], c2[calls], c3[calls];
  for (int i = 0; i < calls; ++i) {
    c0[i] = static_cast<std::uint32_t>(first + i);
    c1[i] = static_cast<std::uint32_t>((first + i) >> 32);
    c2[i] = c3[i] = 0;
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < calls; ++i) {
      const std::uint64_t p0 = 0xD2511F53ull * c0[i], p1 = 0xCD9E8D57ull * c2[i];
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0,
                          n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<std::uint32_t>(p1);
      c3[i] = static_cast<std::uint32_t>(p0);
      c0[i] = n0;
      c2[i] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
#pragma omp simd
  for (int i = 0; i < calls; ++i) {
    numbers[4 * i] = uniform_unit(c0[i]);
    numbers[4 * i + 1] = uniform_unit(c1[i]);
    numbers[4 * i + 2] = uniform_unit(c2[i]);
    numbers[4 * i + 3] = uniform_unit(c3[i]);
  }
}

}  // namespace trireme::kernels
