// SPDX-License-Identifier: Apache-2.0
//
// Exchanges the rows and columns of matrices. Called by src/ops/transpose.cpp.
// A piece is a tile of 32 x 32 elements, whose rows are written one after the other while what is
// read stays in the cache. Memory traffic: x is read once, y is written once.

#include "trireme/kernels/transpose.hpp"

#include "kernels/space/launch.hpp"

namespace trireme::kernels {
namespace {

const std::string transpose_label = "trireme/kernels/transpose";

template <class T>
struct TransposeTile {
  static constexpr std::int64_t side = 32;
  std::int64_t rows, columns, row_tiles, column_tiles;
  const T* x;
  T* y;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return side * side; }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const std::int64_t matrix = piece / (row_tiles * column_tiles),
                       tile = piece % (row_tiles * column_tiles);
    const std::int64_t top = tile / column_tiles * side, left = tile % column_tiles * side;
    const T* from = x + matrix * rows * columns;
    T* to = y + matrix * rows * columns;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = top + i % side, column = left + i / side;
      if (row < rows && column < columns) to[column * rows + row] = from[row * columns + column];
    }
  }
};

}  // namespace

template <class T>
void transpose(const Stream& stream, std::int64_t batch, std::int64_t rows, std::int64_t columns,
               const T* x, T* y) {
  constexpr std::int64_t side = TransposeTile<T>::side;
  const TransposeTile<T> tile{rows, columns, (rows + side - 1) / side, (columns + side - 1) / side,
                              x,    y};
  dispatch(stream, [=](const auto& space) {
    for_each_piece(space, transpose_label, batch * tile.row_tiles * tile.column_tiles, tile);
  });
}
template void transpose(const Stream&, std::int64_t, std::int64_t, std::int64_t, const float*,
                        float*);
template void transpose(const Stream&, std::int64_t, std::int64_t, std::int64_t, const BFloat16*,
                        BFloat16*);
template void transpose(const Stream&, std::int64_t, std::int64_t, std::int64_t, const Float16*,
                        Float16*);

}  // namespace trireme::kernels
