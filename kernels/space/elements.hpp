// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elementwise functions over vectors and over the rows of matrices: results = function(operands).
// The function is a functor on floats that returns a float, or several as Numbers.
// A result depends on its own operands only. So the partition of the work never changes a bit, and
// a result may overwrite an operand.
// Memory traffic: every operand is read once and every result written once.

#include <tuple>
#include <utility>

#include "packed_rows.hpp"

namespace trireme::kernels {

/// Several results of one function.
template <int count>
struct Numbers {
  float value[count];
};

/// An operand whose rows are `stride` elements apart.
template <class T>
struct Matrix {
  using Value = T;
  static constexpr bool one_row = false;
  T* data;
  std::int64_t stride;
  bool packed(int lanes) const { return packs_fit(data) && stride % lanes == 0; }
  KOKKOS_FUNCTION T* row(std::int64_t row) const { return data + row * stride; }
};

/// An operand with one row that is used for all rows.
template <class T>
struct Shared {
  using Value = T;
  static constexpr bool one_row = true;
  T* data;
  bool packed(int) const { return packs_fit(data); }
  KOKKOS_FUNCTION T* row(std::int64_t) const { return data; }
};

/// An operand whose row i is row (first + i) % period of a matrix with rows `stride` elements
/// apart.
template <class T>
struct Cyclic {
  using Value = T;
  static constexpr bool one_row = false;
  T* data;
  std::int64_t stride, first;
  Divisor period;
  bool packed(int lanes) const { return packs_fit(data) && stride % lanes == 0; }
  KOKKOS_FUNCTION T* row(std::int64_t row) const {
    return data + (first + row - period.quotient(first + row) * period.value()) * stride;
  }
};

/// An operand whose row i is row i / times of a matrix with rows `stride` elements apart.
template <class T>
struct Repeated {
  using Value = T;
  static constexpr bool one_row = false;
  T* data;
  std::int64_t stride;
  Divisor times;
  bool packed(int lanes) const { return packs_fit(data) && stride % lanes == 0; }
  KOKKOS_FUNCTION T* row(std::int64_t row) const { return data + times.quotient(row) * stride; }
};

/// Loads a pack from each of `rows` rows of an operand.
template <class Operand, int rows, int lanes>
KOKKOS_FORCEINLINE_FUNCTION void load_rows(const Operand& operand, std::int64_t row,
                                           std::int64_t column, float (&to)[rows][lanes]) {
  if constexpr (Operand::one_row) {
    load<lanes>(operand.row(row) + column, to[0]);
    for (int j = 1; j < rows; ++j) {
      for (int k = 0; k < lanes; ++k) to[j][k] = to[0][k];
    }
  } else {
    for (int j = 0; j < rows; ++j) load<lanes>(operand.row(row + j) + column, to[j]);
  }
}

/// An operand as an indexed base class, so that equal operand types remain distinct.
template <std::size_t index, class Operand>
struct Placed {
  Operand operand;
};

template <class Function, class Results, class Places, class Operands, class OperandPlaces>
class Map;

/// results = function(operands) over rows of `width` elements, `count` elements in all.
template <class Function, class... Y, std::size_t... y, class... X, std::size_t... x>
class Map<Function, std::tuple<Y...>, std::index_sequence<y...>, std::tuple<X...>,
          std::index_sequence<x...>> : Placed<y, Y>...,
                                       Placed<sizeof...(Y) + x, X>... {
  static constexpr std::size_t results = sizeof...(Y), operands = sizeof...(X);
  template <class Operand>
  static constexpr int element_bytes = Operand::one_row ? 1 : sizeof(typename Operand::Value);
  static constexpr int larger(int a, int b) { return a > b ? a : b; }
  static constexpr int largest() {
    int bytes = 1;
    ((bytes = larger(bytes, element_bytes<Y>)), ...);
    ((bytes = larger(bytes, element_bytes<X>)), ...);
    return bytes;
  }

 public:
  /// Chosen so that the widest elements fill 16 bytes: neighboring threads then access neighboring
  /// bytes of every operand.
  static constexpr int lanes = static_cast<int>(pack_bytes) / largest();
  /// Chosen so that about 64 bytes are in flight per thread.
  static constexpr int rows_at_once =
      (0 + ... + (X::one_row ? 0 : lanes * element_bytes<X>)) >= 32 ? 2 : 4;

  Map(const Function& function, std::int64_t count, std::int64_t width, const Y&... result,
      const X&... operand)
      : Placed<y, Y>{result}...,
        Placed<sizeof...(Y) + x, X>{operand}...,
        function_(function),
        count_(count),
        width_(width) {}

  /// Returns whether all rows of all operands are aligned to packs.
  bool packed() const {
    return (true && ... && result<y, Y>().packed(lanes)) &&
           (true && ... && operand<x, X>().packed(lanes));
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t row) const {
    const std::int64_t left = count_ - row * width_;
    return left < width_ ? left : width_;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    run(function_, begin, end, result<y, Y>().row(row)..., operand<x, X>().row(row)...);
  }

  template <int rows, int pack>
  KOKKOS_FORCEINLINE_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    float in[operands][rows][pack], out[results][rows][pack];
    (load_rows(operand<x, X>(), row, column, in[x]), ...);
    for (int j = 0; j < rows; ++j) {
      for (int k = 0; k < pack; ++k) {
        if constexpr (results == 1) {
          out[0][j][k] = function_(in[x][j][k]...);
        } else {
          const auto numbers = function_(in[x][j][k]...);
          ((out[y][j][k] = numbers.value[y]), ...);
        }
      }
    }
    for (int j = 0; j < rows; ++j) (store(out[y][j], result<y, Y>().row(row + j) + column), ...);
  }

 private:
  template <std::size_t place, class Operand>
  KOKKOS_FUNCTION const Operand& result() const {
    return static_cast<const Placed<place, Operand>&>(*this).operand;
  }
  template <std::size_t place, class Operand>
  KOKKOS_FUNCTION const Operand& operand() const {
    return static_cast<const Placed<results + place, Operand>&>(*this).operand;
  }

  KOKKOS_FUNCTION static void run(Function function, std::int64_t begin, std::int64_t end,
                                  typename Y::Value*... to, typename X::Value*... from) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      if constexpr (results == 1) {
        ((to[i] = from_float<typename Y::Value>(function(to_float(from[i])...))), ...);
      } else {
        const auto numbers = function(to_float(from[i])...);
        ((to[i] = from_float<typename Y::Value>(numbers.value[y])), ...);
      }
    }
  }

  Function function_;
  std::int64_t count_, width_;
};

/// Builds the Map of tuples of results and operands.
template <class Function, class... Y, class... X>
auto map_of(const Function& function, std::int64_t count, std::int64_t width,
            const std::tuple<Y...>& results, const std::tuple<X...>& operands) {
  using Result = Map<Function, std::tuple<Y...>, std::index_sequence_for<Y...>, std::tuple<X...>,
                     std::index_sequence_for<X...>>;
  return std::apply(
      [&](const auto&... y) {
        return std::apply(
            [&](const auto&... x) { return Result(function, count, width, y..., x...); }, operands);
      },
      results);
}

/// Enqueues results = function(operands) over matrices [rows, width].
template <class Function, class... Y, class... X>
void for_each_element(const Stream& stream, const std::string& label, std::int64_t rows,
                      std::int64_t width, const Function& function, const std::tuple<Y...>& results,
                      const std::tuple<X...>& operands) {
  const auto map = map_of(function, rows * width, width, results, operands);
  dispatch(stream, [=, &label](const auto& space) {
    for_each_row(space, label, rows, width, map.packed(), map);
  });
}

// 64 KiB of float32: some microseconds of work, and enough pieces for many threads.
constexpr std::int64_t piece_elements = 16384;
// Packs per row when a device treats a vector as a matrix: one per thread of a warp.
constexpr std::int64_t warp_packs = 32;

/// Treats a vector as a matrix: on the host one row per piece, on a device rows of warp_packs
/// packs. A device takes the elements after the last full row one by one.
template <class Space, class Function, class... Y, class... X>
void run_vector(const Space& space, const std::string& label, std::int64_t count,
                const Function& function, const std::tuple<Y*...>& results,
                const std::tuple<X*...>& operands) {
  const auto with_rows_of = [&](std::int64_t width) {
    return map_of(
        function, count, width,
        std::apply([=](auto*... y) { return std::tuple(Matrix<Y>{y, width}...); }, results),
        std::apply([=](auto*... x) { return std::tuple(Matrix<X>{x, width}...); }, operands));
  };
  if constexpr (on_host<Space>) {
    for_each_piece(space, label, (count + piece_elements - 1) / piece_elements,
                   with_rows_of(piece_elements));
  } else {
    constexpr int lanes = decltype(with_rows_of(0))::lanes;
    const auto map = with_rows_of(warp_packs * lanes);
    const std::int64_t width = warp_packs * lanes;
    map.packed() ? for_each_pack<lanes>(space, label, count / width, warp_packs, count % width, map)
                 : for_each_pack<1>(space, label, count / width, width, count % width, map);
  }
}

/// Enqueues results = function(operands) over vectors of `count` elements.
template <class Function, class... Y, class... X>
void for_each_element(const Stream& stream, const std::string& label, std::int64_t count,
                      const Function& function, const std::tuple<Y*...>& results,
                      const std::tuple<X*...>& operands) {
  dispatch(stream, [=, &label](const auto& space) {
    run_vector(space, label, count, function, results, operands);
  });
}

}  // namespace trireme::kernels
