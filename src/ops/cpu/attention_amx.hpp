#pragma once

// Matrix products of attention tiles on Intel AMX: bfloat16 operands, float32 sums. An AMX register
// holds 16 rows of 64 bytes. Right operands are stored in pairs of rows, [depth / 2, columns, 2].

#include "attention_products.hpp"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define TRIREME_HAVE_AMX 1

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trireme::ops::cpu {

/// Computes c [rows, columns] float32 = or += a b over `depth` steps. All three are multiples of
/// 32, so that four registers of sums share the operands.
template <bool add>
inline void multiply_tiles(const BFloat16* a, std::int64_t a_stride, const BFloat16* b,
                           std::int64_t b_stride, float* c, std::int64_t c_stride, int rows,
                           int columns, int depth) {
  asm volatile("" ::: "memory");  // the intrinsics do not declare that they read memory
  for (int m = 0; m < rows; m += 32) {
    for (int n = 0; n < columns; n += 32) {
      float* const upper = c + m * c_stride + n;
      float* const lower = upper + 16 * c_stride;
      if constexpr (add) {
        _tile_loadd(0, upper, c_stride * 4);
        _tile_loadd(1, upper + 16, c_stride * 4);
        _tile_loadd(2, lower, c_stride * 4);
        _tile_loadd(3, lower + 16, c_stride * 4);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int k = 0; k < depth; k += 32) {
        const BFloat16* const left = a + m * a_stride + k;
        const BFloat16* const right = b + k / 2 * b_stride + n * 2;
        _tile_loadd(4, left, a_stride * 2);
        _tile_loadd(6, right, b_stride * 2);
        _tile_loadd(5, left + 16 * a_stride, a_stride * 2);
        _tile_loadd(7, right + 32, b_stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, upper, c_stride * 4);
      _tile_stored(1, upper + 16, c_stride * 4);
      _tile_stored(2, lower, c_stride * 4);
      _tile_stored(3, lower + 16, c_stride * 4);
    }
  }
  asm volatile("" ::: "memory");
}

/// The interface of FloatProducts for bfloat16 tensors, with bfloat16 operands.
struct AmxProducts {
  using Element = BFloat16;
  static constexpr int width_step = 32, strip_keys = 32;
  static constexpr int pair_row = 2 * tile;  ///< elements of a pair of rows of scores

  /// Returns whether the processor has AMX and Linux permits this process to use it ("dynamically
  /// enabled features" of x86).
  static bool available() {
    static const bool permitted = [] {
      // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA
      constexpr long request_permission = 0x1023, tile_data = 18;
      unsigned a = 0, b = 0, c = 0, d = 0;
      return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bit_AMX_BF16) != 0 &&
             syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return permitted;
  }

  /// A thread's setup: configures all registers as 16 rows of 64 bytes; releases the unit at its
  /// end.
  struct ThreadSetup {
    ThreadSetup() {
      struct alignas(64) {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } configuration;
      static_assert(sizeof configuration == 64);
      asm volatile("" ::"m"(configuration) : "memory");
      _tile_loadconfig(&configuration);
    }
    ~ThreadSetup() { _tile_release(); }
    ThreadSetup(const ThreadSetup&) = delete;
    ThreadSetup& operator=(const ThreadSetup&) = delete;
  };

  static void load_left(const RowsView<const BFloat16>& rows, int width, Element* to) {
    for (int r = 0; r < tile; ++r, to += width) {
      for (int i = 0; i < width; i += 16) store(to + i, load_16(rows, r, i));
    }
  }
  /// Writes [width, tile].
  static void load_left_transposed(const RowsView<const BFloat16>& rows, int width, Element* to,
                                   Element* scratch) {
    load_right(rows, width, scratch);
    transpose(scratch, tile / 2, width, to);
  }
  /// Writes [tile / 2, width, 2].
  static void load_right(const RowsView<const BFloat16>& rows, int width, Element* to) {
    for (int r = 0; r < tile; r += 2, to += 2 * width) {
      for (int i = 0; i < width; i += 16) {
        NarrowVector both;
        store(&both, load_16(rows, r, i));
        store(reinterpret_cast<std::byte*>(&both) + 32, load_16(rows, r + 1, i));
        store(to + 2 * i, interleave(both));
      }
    }
  }
  /// Writes [width / 2, tile, 2].
  static void load_right_transposed(const RowsView<const BFloat16>& rows, int width, Element* to,
                                    Element* scratch) {
    load_left(rows, width, scratch);
    transpose(scratch, tile, width / 2, to);
  }

  static void put_right(Element* right, int k, int q, Vector even, Vector odd) {
    put_right(right, k, q, to_bfloat16(even, odd));
  }
  static void put_left(Element* left, int k, int q, Vector even, Vector odd) {
    put_left(left, k, q, to_bfloat16(even, odd));
  }
  static void put_both(Element* left, Element* right, int k, int q, Vector even, Vector odd) {
    const NarrowVector both = to_bfloat16(even, odd);
    put_left(left, k, q, both);
    put_right(right, k, q, both);
  }

  static void scores(const Element* k, const Element* q_transposed, int width, const Strip& s,
                     float* to) {
    multiply_tiles<false>(k + s.begin * width, width, q_transposed + 2 * s.begin_query, pair_row,
                          to + s.begin * tile + s.begin_query, tile, s.end - s.begin,
                          tile - s.begin_query, width);
  }
  static void sum_over_keys(const Element* v_transposed, const Element* p, int width,
                            const Strip& s, float* to) {
    multiply_tiles<true>(v_transposed + s.begin, tile,
                         p + s.begin / 2 * pair_row + 2 * s.begin_query, pair_row,
                         to + s.begin_query, tile, width, tile - s.begin_query, s.end - s.begin);
  }
  static void sum_over_queries(const Element* p, const Element* x, int width, const Strip& s,
                               float* to) {
    multiply_tiles<true>(p + s.begin * tile + s.begin_query, tile, x + s.begin_query * width,
                         2 * width, to + s.begin * width, width, s.end - s.begin, width,
                         tile - s.begin_query);
  }

 private:
  using HalfVector = std::uint16_t __attribute__((vector_size(32)));
  using NarrowVector = std::uint16_t __attribute__((vector_size(64)));

  /// Returns the elements [i, i + 16) of row r, zeros beyond the rows and their width.
  static HalfVector load_16(const RowsView<const BFloat16>& rows, int r, int i) {
    HalfVector v{};
    const int valid = r < rows.count ? rows.width - i : 0;
    const BFloat16* const from = rows.data + r * rows.stride + i;
    if (valid >= 16) return load<HalfVector>(from);
    if (valid > 0) std::memcpy(&v, from, static_cast<std::size_t>(valid) * sizeof *from);
    return v;
  }
  /// Returns bfloat16 numbers: 16 of `even`, then 16 of `odd`.
  static NarrowVector to_bfloat16(Vector even, Vector odd) {
    return reinterpret_cast<NarrowVector>(
        _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even)));
  }
  /// Returns the elements of the two halves in alternation.
  static NarrowVector interleave(NarrowVector v) {
    return __builtin_shufflevector(v, v, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8,
                                   24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
  static void put_right(Element* right, int k, int q, NarrowVector both) {
    store(right + k / 2 * pair_row + 2 * q, interleave(both));
  }
  static void put_left(Element* left, int k, int q, NarrowVector both) {
    std::memcpy(left + k * tile + q, &both, 32);
    std::memcpy(left + (k + 1) * tile + q, reinterpret_cast<const std::byte*>(&both) + 32, 32);
  }
};

}  // namespace trireme::ops::cpu

#endif
