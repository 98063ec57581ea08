// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#if defined(__CUDACC__)
#define TRIREME_FUNCTION __host__ __device__ inline
#else
#define TRIREME_FUNCTION inline
#endif

namespace trireme {

/// Four random 32-bit words: the 128-bit output of one Philox call.
struct RandomWords {
  std::uint32_t word[4];
};

/// The finalizer of splitmix64: a bijection of 64 bits with full avalanche (Steele, Lea, Flood
/// 2014).
TRIREME_FUNCTION std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// Returns the 64-bit product of two 32-bit numbers. Plain C++ that widens both factors makes nvcc
/// multiply their zero upper halves too, so device code uses one instruction.
TRIREME_FUNCTION std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  std::uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return std::uint64_t{a} * b;
#endif
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a pure
/// function of key and counter. It has no state, so any thread can compute any element.
TRIREME_FUNCTION RandomWords philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low),
                c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high),
                c3 = static_cast<std::uint32_t>(counter_high >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = wide_product(0xD2511F53u, c0), p1 = wide_product(0xCD9E8D57u, c2);
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Converts a random word to a uniform number in [0, 1) with 24 random bits.
TRIREME_FUNCTION float uniform_unit(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

/// Derives a key from the run's seed and a name ("init/conv1.weight", "augment", ...). Every random
/// number of a run follows from the seed and such a name, so results do not depend on the layout.
inline std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a, then mixed with the seed
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return mix64(mix64(seed + 0x9E3779B97F4A7C15ull) ^ hash);
}

/// Returns the standard normal number of element `index` under `key`. Uses Box-Muller in double
/// precision and one Philox call.
inline double normal_at(std::uint64_t key, std::uint64_t index) {
  const RandomWords r = philox(key, index, 0);
  const double u =
      (static_cast<double>((std::uint64_t{r.word[0]} << 21) ^ (r.word[1] >> 11)) + 0.5) * 0x1p-53;
  const double v =
      (static_cast<double>((std::uint64_t{r.word[2]} << 21) ^ (r.word[3] >> 11)) + 0.5) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
}

/// Returns the uniform number in [0, 1) of element `index` under `key`, with 53 random bits.
inline double uniform_at(std::uint64_t key, std::uint64_t index) {
  const RandomWords r = philox(key, index, 0);
  return static_cast<double>((std::uint64_t{r.word[0]} << 21) ^ (r.word[1] >> 11)) * 0x1p-53;
}

}  // namespace trireme
