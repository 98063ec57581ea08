#pragma once

// Neighbouring elements that one thread of a device takes at once, in float32 registers: memory
// gives and takes them 16 bytes at a time, which a device's memory needs to be kept busy; 8 bytes
// where that is all of an operand that stands beside wider ones. A count whose bytes are no
// multiple of 8 goes element by element; so `load<1>` is the element itself.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <cstring>

#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

constexpr std::int64_t pack_bytes = 16;

/// What one access takes.
template <int words>
struct alignas(4 * words) Words {
  std::uint32_t word[words];
};
using PackWords = Words<4>;

template <int words>
KOKKOS_FORCEINLINE_FUNCTION Words<words> read_words(const void* from) {
  return *static_cast<const Words<words>*>(from);
}

KOKKOS_FORCEINLINE_FUNCTION std::uint64_t join_words(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

/// In one access. nvcc takes a structure of words apart and does not always put the stores together
/// again: it gets them as one number.
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

/// 32-bit words of one access to `count` elements of T; 0: element by element.
template <class T, int count>
constexpr int access_words = count * sizeof(T) % 16 == 0  ? 4
                             : count * sizeof(T) % 8 == 0 ? 2
                                                          : 0;

/// Elements of a pack of T.
template <class T>
constexpr int pack_lanes = static_cast<int>(pack_bytes / sizeof(T));

/// Whether packs may be taken from all of these places on (null is).
template <class... T>
bool packs_fit(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % pack_bytes == 0) && ...);
}

/// The two elements of a word, of which that in `low` stands first in memory.
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

/// Both rounded to the nearest, ties to even.
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

/// to[k] = from[k]; where count elements are whole accesses, `from` is a multiple of their bytes.
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

/// to[k] = from[k], rounded to T; the same condition.
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
