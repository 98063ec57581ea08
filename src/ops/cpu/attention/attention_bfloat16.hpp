// SPDX-License-Identifier: Apache-2.0
#pragma once

// Matrix products of attention tiles with bfloat16 operands and float32 sums. All units multiply
// pairs of numbers that are adjacent along the sum, so they share the layout of the operands: left
// [rows, depth], right in pairs of rows, [depth / 2, columns, 2].

#include "attention_products.hpp"

#if defined(__AVX512BF16__)
#define TRIREME_HAVE_BFLOAT16_PRODUCTS 1

#include <immintrin.h>

namespace trireme::ops::cpu {

/// One step of a sum: a lane adds the two products of a pair of bfloat16 numbers (vdpbf16ps). The
/// instruction adds the second product and then the first, each rounded to nearest as a fused
/// multiply-add in float32 is, but it takes subnormal numbers (below 1.2e-38) as 0 and makes none.
struct PairStep {
  static_assert(lanes == 16, "vdpbf16ps is used with 64-byte vectors");
  using Element = BFloat16;
  static constexpr int elements = 2;
  static Vector load_left(const Element* from) {
    std::uint32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return reinterpret_cast<Vector>(pair - WordVector{});
  }
  static Vector add(Vector sum, Vector left, Vector right) {
    return reinterpret_cast<Vector>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(left),
                                                     reinterpret_cast<__m512bh>(right)));
  }
};

/// The unit of dot products of pairs for Bfloat16Products: AMD from Zen 4 on, Intel without AMX.
/// Not checked at run time, as AMX is: the build has the instruction set of the processors that run
/// it, and the compiler may use this instruction anywhere, while AMX needs a permit of the system.
struct DotUnit {
  /// A thread's setup before its first product: none.
  struct ThreadSetup {};
  static constexpr int strip_keys = 16;

  /// Computes c [rows, columns] float32 = or += a b over `depth` steps. Columns are a multiple of
  /// 16, the depth is even.
  template <bool add>
  static void multiply(const BFloat16* a, std::int64_t a_stride, const BFloat16* b,
                       std::int64_t b_stride, float* c, std::int64_t c_stride, int rows,
                       int columns, int depth) {
    cpu::multiply<PairStep, add>({a, a_stride, 2}, {b, b_stride}, c, c_stride, rows, columns,
                                 depth / 2);
  }
};

/// The interface of FloatProducts for bfloat16 tensors. `Unit` multiplies.
template <class Unit>
struct Bfloat16Products {
  using Element = BFloat16;
  using ThreadSetup = typename Unit::ThreadSetup;
  static constexpr int width_step = 32, strip_keys = Unit::strip_keys;
  static constexpr int pair_row = 2 * tile;  ///< elements of a pair of rows of scores

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
    Unit::template multiply<false>(k + s.begin * width, width, q_transposed + 2 * s.begin_query,
                                   pair_row, to + s.begin * tile + s.begin_query, tile,
                                   s.end - s.begin, s.queries(), width);
  }
  static void sum_over_keys(const Element* v_transposed, const Element* p, int width,
                            const Strip& s, float* to) {
    Unit::template multiply<true>(v_transposed + s.begin, tile,
                                  p + s.begin / 2 * pair_row + 2 * s.begin_query, pair_row,
                                  to + s.begin_query, tile, width, s.queries(), s.end - s.begin);
  }
  static void sum_over_queries(const Element* p, const Element* x, int width, const Strip& s,
                               float* to) {
    Unit::template multiply<true>(p + s.begin * tile + s.begin_query, tile,
                                  x + s.begin_query * width, 2 * width, to + s.begin * width, width,
                                  s.end - s.begin, width, s.queries());
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

using DotProducts = Bfloat16Products<DotUnit>;

}  // namespace trireme::ops::cpu

#endif
