// SPDX-License-Identifier: Apache-2.0
#pragma once

// A pack: neighboring elements that one device thread loads or stores in one access and computes on
// in float32 registers.
//
//   16 bytes   the normal access; device memory reaches its bandwidth only with accesses this wide
//    8 bytes   the narrow operand next to operands of wider elements
//   1 element  all counts whose bytes are not a multiple of 8; load<1> and store<1>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <cstring>

#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

constexpr std::int64_t pack_bytes = 16;

/// The 32-bit words of one access.
template <int words>
struct alignas(4 * words) Words {
  std::uint32_t word[words];
};
using PackWords = Words<4>;

/// Reads one access. `from` must be aligned to it.
template <int words>
KOKKOS_FORCEINLINE_FUNCTION Words<words> read_words(const void* from) {
  return *static_cast<const Words<words>*>(from);
}

KOKKOS_FORCEINLINE_FUNCTION std::uint64_t join_words(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

/// Writes one access. nvcc splits a structure of words and does not always merge the stores again,
/// so it gets the words as one integer.
template <int words>
KOKKOS_FORCEINLINE_FUNCTION void write_words(const Words<words>& all, void* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (words == 4) {
    const unsigned __int128 high = join_words(all.word[2], all.word[3]);
    *static_cast<unsigned __int128*>(to) = join_words(all.word[0], all.word[1]) | high << 64;
  } else if constexpr (words == 2) {
    *static_cast<std::uint64_t*>(to) = join_words(all.word[0], all.word[1]);
  } else {
    *static_cast<std::uint32_t*>(to) = all.word[0];
  }
#else
  *static_cast<Words<words>*>(to) = all;
#endif
}

/// 32-bit words per access to `count` elements of T; 0: element by element.
template <class T, int count>
constexpr int access_words = count * sizeof(T) % 16 == 0  ? 4
                             : count * sizeof(T) % 8 == 0 ? 2
                                                          : 0;

/// Elements of T in one pack.
template <class T>
constexpr int pack_lanes = static_cast<int>(pack_bytes / sizeof(T));

/// Returns whether all pointers are aligned to packs; null pointers are.
template <class... T>
bool packs_fit(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % pack_bytes == 0) && ...);
}

/// Unpacks the two elements of a word to float32; `low` comes first in memory.
KOKKOS_FORCEINLINE_FUNCTION void unpack_pair(BFloat16, std::uint32_t pair, float& low,
                                             float& high) {
  low = float_of_bits(pair << 16);
  high = float_of_bits(pair & 0xFFFF0000u);
}
KOKKOS_FORCEINLINE_FUNCTION void unpack_pair(Float16, std::uint32_t pair, float& low, float& high) {
#if defined(__CUDA_ARCH__)
  asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(low), "=f"(high)
      : "r"(pair));
#else
  low = to_float(Float16{static_cast<std::uint16_t>(pair)});
  high = to_float(Float16{static_cast<std::uint16_t>(pair >> 16)});
#endif
}

/// Rounds two numbers to nearest, ties to even, and packs them into one word.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t pack_pair(BFloat16, float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bfloat16(low).bits | static_cast<std::uint32_t>(to_bfloat16(high).bits) << 16;
#endif
}
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t pack_pair(Float16, float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_float16(low).bits | static_cast<std::uint32_t>(to_float16(high).bits) << 16;
#endif
}

/// to[k] = from[k] in float32. If `count` elements are whole accesses, `from` must be aligned to
/// them.
template <int count, class T>
KOKKOS_FORCEINLINE_FUNCTION void load(const T* from, float (&to)[count]) {
  constexpr int words = access_words<T, count>;
  if constexpr (words == 0) {
    for (int k = 0; k < count; ++k) to[k] = to_float(from[k]);
  } else if constexpr (sizeof(T) == 4) {
    for (int begin = 0; begin < count; begin += words) {
      const auto all = read_words<words>(from + begin);
      for (int k = 0; k < words; ++k) to[begin + k] = float_of_bits(all.word[k]);
    }
  } else {
    for (int begin = 0; begin < count; begin += 2 * words) {
      const auto all = read_words<words>(from + begin);
      for (int k = 0; k < words; ++k)
        unpack_pair(T{}, all.word[k], to[begin + 2 * k], to[begin + 2 * k + 1]);
    }
  }
}

/// to[k] = from[k], rounded to T. Same alignment rule as load().
template <int count, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(const float (&from)[count], T* to) {
  constexpr int words = access_words<T, count>;
  if constexpr (words == 0) {
    for (int k = 0; k < count; ++k) to[k] = from_float<T>(from[k]);
  } else if constexpr (sizeof(T) == 4) {
    for (int begin = 0; begin < count; begin += words) {
      Words<words> all;
      for (int k = 0; k < words; ++k) memcpy(&all.word[k], &from[begin + k], sizeof(float));
      write_words(all, to + begin);
    }
  } else {
    for (int begin = 0; begin < count; begin += 2 * words) {
      Words<words> all;
      for (int k = 0; k < words; ++k)
        all.word[k] = pack_pair(T{}, from[begin + 2 * k], from[begin + 2 * k + 1]);
      write_words(all, to + begin);
    }
  }
}

}  // namespace trireme::kernels
