// SPDX-License-Identifier: Apache-2.0
#pragma once

// Matrix products of attention tiles by vectors, and their float32 form. A tile is `tile` queries
// or keys. The scores of a pair of tiles are stored as S^T [keys, queries], so that a vector holds
// adjacent queries. Row statistics then need no sum across a vector, and no product needs
// transposed scores.
//
// Products have three forms, and all add in float32:
//
//   tensors            processor                 operands   form
//   bfloat16           AMX                       bfloat16   AmxProducts (attention_amx.hpp)
//   bfloat16           AVX512_BF16 without AMX   bfloat16   DotProducts (attention_bfloat16.hpp)
//   bfloat16           any other                 float32    FloatProducts
//   float32, float16   any                       float32    FloatProducts
//
// With bfloat16 operands, probabilities and gradients of scores are rounded to bfloat16. Scores,
// softmax and all sums are float32 in each form. Each has bits of its own.

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "ops/cpu/vector.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::ops::cpu {

constexpr int tile = 64;  ///< number of queries, and of keys, in a tile
constexpr float log2_e = 1.44269504f;

/// Keys [begin, end) of a tile that only the queries [begin_query, end_query) of the other tile
/// see. Off the diagonal: all keys and all queries. On the diagonal, strips form stairs:
///
///            queries ->
///   keys     # # # #      strip 0: begin_query 0
///    |         # # #      strip 1: begin_query 16
///    v           # #      strip 2 ...
struct Strip {
  int begin = 0, end = 0, begin_query = 0, end_query = tile;
  int queries() const { return end_query - begin_query; }
};

/// One step of a sum: a lane adds one product of float32 numbers. PairStep has the same interface.
struct FloatStep {
  using Element = float;
  static constexpr int elements = 1;  ///< products that a lane adds
  static Vector load_left(const Element* from) { return broadcast(*from); }
  static Vector add(Vector sum, Vector left, Vector right) { return sum + left * right; }
};

/// A left operand: the elements of (row, step of the sum) begin at data[row * row_stride + step *
/// step_stride].
template <class Element>
struct LeftMatrix {
  const Element* data;
  std::int64_t row_stride, step_stride;
};

/// A right operand: `data` has a row of [columns, elements of a step] for each step.
template <class Element>
struct RightMatrix {
  const Element* data;
  std::int64_t step_stride;
};

/// Computes c [rows, vectors * lanes] = or += a b over `steps`. All sums stay in registers.
template <class Step, int rows, int vectors, bool add>
inline void multiply_block(LeftMatrix<typename Step::Element> a,
                           RightMatrix<typename Step::Element> b, float* c, std::int64_t c_stride,
                           int steps) {
  Vector sum[rows][vectors];
#pragma GCC unroll 32
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = add ? load(c + r * c_stride + v * lanes) : Vector{};
  for (int k = 0; k < steps; ++k) {
    Vector right[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      right[v] = load(b.data + k * b.step_stride + v * lanes * Step::elements);
#pragma GCC unroll 32
    for (int r = 0; r < rows; ++r) {
      const Vector left = Step::load_left(a.data + r * a.row_stride + k * a.step_stride);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[r][v] = Step::add(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(c + r * c_stride + v * lanes, sum[r][v]);
}

/// The same for any number of rows. Sums use 24 of 32 vector registers (12 of 16).
template <class Step, int vectors, bool add>
inline void multiply_panel(LeftMatrix<typename Step::Element> a,
                           RightMatrix<typename Step::Element> b, float* c, std::int64_t c_stride,
                           int rows, int steps) {
  constexpr int sums = vector_bytes == 64 ? 24 : 12, max_rows = sums / vectors;
  const auto blocks = [&]<int count>(std::integral_constant<int, count>) {
    for (; rows >= count; rows -= count, a.data += count * a.row_stride, c += count * c_stride) {
      multiply_block<Step, count, vectors, add>(a, b, c, c_stride, steps);
    }
  };
  blocks(std::integral_constant<int, max_rows>());
  blocks(std::integral_constant<int, 4>());
  blocks(std::integral_constant<int, 1>());
}

/// The same for any multiple of 16 columns.
template <class Step, bool add>
inline void multiply(LeftMatrix<typename Step::Element> a, RightMatrix<typename Step::Element> b,
                     float* c, std::int64_t c_stride, int rows, int columns, int steps) {
  // `unit`: vectors in 16 columns.
  constexpr int unit = 16 / lanes, panel = lanes == 16 ? 64 : 16;
  const auto run = [&]<int vectors>(std::integral_constant<int, vectors>, int column) {
    multiply_panel<Step, vectors, add>(a, {b.data + column * Step::elements, b.step_stride},
                                       c + column, c_stride, rows, steps);
  };
  int column = 0;
  for (; column + panel <= columns; column += panel)
    run(std::integral_constant<int, panel / lanes>(), column);
  if constexpr (panel > 16) {
    switch ((columns - column) / 16) {
      case 3: return run(std::integral_constant<int, 3 * unit>(), column);
      case 2: return run(std::integral_constant<int, 2 * unit>(), column);
      case 1: return run(std::integral_constant<int, 1 * unit>(), column);
    }
  }
}

/// Rows of a tensor: `count` rows (at most a tile) of `width` elements, `stride` elements apart.
template <class T>
struct RowsView {
  T* data;
  std::int64_t stride;
  int count, width;
};

/// Writes `to` [tile, padded width] in float32, with zeros beyond the rows and the width.
template <class T>
void widen(const RowsView<T>& rows, int padded, float* to) {
  for (int r = 0; r < tile; ++r, to += padded) {
    const int valid = r < rows.count ? rows.width : 0;
    T* const from = rows.data + r * rows.stride;
#pragma omp simd
    for (int i = 0; i < valid; ++i) to[i] = to_float(from[i]);
    std::fill(to + valid, to + padded, 0.0f);
  }
}

/// Transposes a block of lanes x lanes words of 4 bytes in registers. For each `step`, rows i and i
/// + step swap their off-diagonal blocks of that size.
inline void transpose_block(const std::byte* x, std::int64_t stride, std::byte* to,
                            std::int64_t to_stride) {
  WordVector row[lanes];
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) row[i] = load<WordVector>(x + i * stride);
#pragma GCC unroll 4
  for (int step = 1; step < lanes; step *= 2) {
    WordVector early{}, late{};
    for (int lane = 0; lane < lanes; ++lane) {
      early[lane] = lane & step ? lanes + lane - step : lane;
      late[lane] = lane & step ? lanes + lane : lane + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      if ((i & step) != 0) continue;
      const WordVector upper = row[i], lower = row[i + step];
      row[i] = __builtin_shuffle(upper, lower, early);
      row[i + step] = __builtin_shuffle(upper, lower, late);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) store(to + i * to_stride, row[i]);
}

/// Writes `to` [columns, rows] = x^T of words of 4 bytes (a number, or a pair of smaller ones).
/// Both extents are multiples of 16.
template <class E>
void transpose(const E* x, int rows, int columns, E* to) {
  for (int r = 0; r < rows; r += lanes) {
    for (int c = 0; c < columns; c += lanes) {
      transpose_block(reinterpret_cast<const std::byte*>(x) + (r * columns + c) * 4, columns * 4,
                      reinterpret_cast<std::byte*>(to) + (c * rows + r) * 4, rows * 4);
    }
  }
}

/// Products with float32 operands, for tensors of any type. Bfloat16Products has the same
/// interface.
struct FloatProducts {
  using Element = float;
  /// A thread's setup before its first product: none.
  struct ThreadSetup {};
  static constexpr int width_step = 16;  ///< a head's width is padded to a multiple of this
  static constexpr int strip_keys = 16;  ///< keys in a strip on the diagonal

  // Each loads the rows of a tensor as an operand [tile, width] or its transpose, as left or right
  // factor. `scratch` is as large.
  template <class T>
  static void load_left(const RowsView<T>& rows, int width, Element* to) {
    widen(rows, width, to);
  }
  /// Not transposed in memory: sum_over_keys() reads it by its strides.
  template <class T>
  static void load_left_transposed(const RowsView<T>& rows, int width, Element* to, Element*) {
    widen(rows, width, to);
  }
  template <class T>
  static void load_right(const RowsView<T>& rows, int width, Element* to) {
    widen(rows, width, to);
  }
  template <class T>
  static void load_right_transposed(const RowsView<T>& rows, int width, Element* to,
                                    Element* scratch) {
    widen(rows, width, scratch);
    transpose(scratch, tile, width, to);
  }

  // Each stores keys k and k + 1 (k even) of a matrix of scores for the queries [q, q + lanes), as
  // a right operand, a left operand, or both.
  static void put_right(Element* right, int k, int q, Vector even, Vector odd) {
    store(right + k * tile + q, even);
    store(right + (k + 1) * tile + q, odd);
  }
  static void put_left(Element* left, int k, int q, Vector even, Vector odd) {
    put_right(left, k, q, even, odd);
  }
  static void put_both(Element* left, Element*, int k, int q, Vector even, Vector odd) {
    put_right(left, k, q, even, odd);
  }

  /// Writes scores [tile keys, tile queries] = k q^T, the strip's part.
  static void scores(const Element* k, const Element* q_transposed, int width, const Strip& s,
                     float* to) {
    multiply<FloatStep, false>(
        {k + s.begin * width, width, 1}, {q_transposed + s.begin_query, tile},
        to + s.begin * tile + s.begin_query, tile, s.end - s.begin, s.queries(), width);
  }
  /// Adds v^T p to `to` [width, tile queries], summed over the strip's keys.
  static void sum_over_keys(const Element* v_transposed, const Element* p, int width,
                            const Strip& s, float* to) {
    multiply<FloatStep, true>({v_transposed + s.begin * width, 1, width},
                              {p + s.begin * tile + s.begin_query, tile}, to + s.begin_query, tile,
                              width, s.queries(), s.end - s.begin);
  }
  /// Adds p x to `to` [tile keys, width], summed over the strip's queries.
  static void sum_over_queries(const Element* p, const Element* x, int width, const Strip& s,
                               float* to) {
    multiply<FloatStep, true>({p + s.begin * tile + s.begin_query, tile, 1},
                              {x + s.begin_query * width, width}, to + s.begin * width, width,
                              s.end - s.begin, width, s.queries());
  }
};

}  // namespace trireme::ops::cpu
