#include "trireme/kernels/embedding.hpp"

#include "launch.hpp"

// Rows of tables: a piece is a row, and neighbouring threads go over its columns. Gradients are gathered, not scattered: each row of the
// gradient is one piece's alone, which adds the rows of dy in ascending order, so nothing depends on the number of threads. dy is read once
// and the gradient written once (where it is added to, read as well).

namespace trireme::kernels {
namespace {

const std::string forward_label = "trireme/kernels/embedding_forward";
const std::string places_label = "trireme/kernels/embedding_places";
const std::string backward_label = "trireme/kernels/embedding_backward";
const std::string add_positions_label = "trireme/kernels/add_positions";
const std::string positions_backward_label = "trireme/kernels/positions_backward";

/// The token's row of the table; -1: not in it.
KOKKOS_INLINE_FUNCTION std::int64_t table_row(const EmbeddingShape& shape, std::int32_t token) {
  const std::int64_t row = token - shape.first;
  return row >= 0 && row < shape.table_rows ? row : -1;
}

template <class T>
struct Forward {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  const T* table;
  T* y;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.width; }
  KOKKOS_FUNCTION void operator()(std::int64_t place, std::int64_t begin, std::int64_t end) const {
    const std::int64_t row = table_row(shape, tokens[place]);
    T* __restrict target = y + place * shape.width;
    if (row < 0) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = from_float<T>(0);
      return;
    }
    const T* __restrict source = table + row * shape.width;
    for (std::int64_t i = begin; i < end; ++i) target[i] = source[i];
  }
};

/// Tasks that make the lists of places: each reads all tokens, for the rows of the table whose number modulo the tasks is its own. On the
/// host one: the reading is nothing beside the rows of dy, and a list is a few instructions a token.
template <class Space>
constexpr std::int64_t place_tasks = on_host<Space> ? 1 : 4096;

struct Places {
  std::int64_t tasks;
  EmbeddingShape shape;
  const std::int32_t* tokens;
  TokenPlaces places;

  KOKKOS_FUNCTION void operator()(std::int64_t task) const {
    for (std::int64_t row = task; row < shape.table_rows; row += tasks) places.first[row] = -1;
    for (std::int64_t place = shape.count - 1; place >= 0; --place) {
      const std::int64_t row = table_row(shape, tokens[place]);
      if (row < 0 || row % tasks != task) continue;
      places.next[place] = places.first[row];
      places.first[row] = static_cast<std::int32_t>(place);
    }
  }
};

/// Pieces that lie side by side are given to one thread. Frequent tokens have neighbouring, low numbers: so neighbouring pieces are rows of
/// the table that lie `stripes` apart, and each thread gets its share of the frequent ones.
constexpr std::int64_t stripes = 64;

template <class T, bool add>
struct Backward {
  EmbeddingShape shape;
  const T* dy;
  TokenPlaces places;
  float* dtable;

  KOKKOS_FUNCTION std::int64_t rows_of_stripe() const { return (shape.table_rows + stripes - 1) / stripes; }
  KOKKOS_FUNCTION std::int64_t row_of(std::int64_t piece) const { return piece % rows_of_stripe() * stripes + piece / rows_of_stripe(); }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const { return row_of(piece) < shape.table_rows ? shape.width : 0; }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    if (begin >= end) return;
    const std::int64_t row = row_of(piece);
    float* __restrict target = dtable + row * shape.width;
    if constexpr (!add) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = 0;
    }
    for (std::int64_t place = places.first[row]; place >= 0; place = places.next[place]) {
      const T* __restrict source = dy + place * shape.width;
      for (std::int64_t i = begin; i < end; ++i) target[i] += to_float(source[i]);
    }
  }
};

template <class T>
struct AddPositions {
  PositionShape shape;
  const T* table;
  T* y;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.width; }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const T* __restrict source = table + (shape.first_row + row) % shape.context * shape.width;
    T* __restrict target = y + row * shape.width;
    for (std::int64_t i = begin; i < end; ++i) target[i] = from_float<T>(to_float(target[i]) + to_float(source[i]));
  }
};

template <class T, bool add>
struct PositionsBackward {
  PositionShape shape;
  const T* dy;
  float* dtable;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.width; }
  KOKKOS_FUNCTION void operator()(std::int64_t position, std::int64_t begin, std::int64_t end) const {
    float* __restrict target = dtable + position * shape.width;
    if constexpr (!add) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = 0;
    }
    const std::int64_t first = (position - shape.first_row % shape.context + shape.context) % shape.context;
    for (std::int64_t row = first; row < shape.rows; row += shape.context) {
      const T* __restrict source = dy + row * shape.width;
      for (std::int64_t i = begin; i < end; ++i) target[i] += to_float(source[i]);
    }
  }
};

template <class Space, class T>
void run_backward(const Space& space, const EmbeddingShape& shape, const std::int32_t* tokens, const T* dy, const TokenPlaces& places, bool add,
                  float* dtable) {
  for_each_index(space, places_label, place_tasks<Space>, Places{place_tasks<Space>, shape, tokens, places});
  const Backward<T, false> assign{shape, dy, places, dtable};
  const std::int64_t pieces = stripes * assign.rows_of_stripe();
  add ? for_each_piece(space, backward_label, pieces, Backward<T, true>{shape, dy, places, dtable}) : for_each_piece(space, backward_label, pieces, assign);
}

template <class Space, class T>
void run_positions_backward(const Space& space, const PositionShape& shape, const T* dy, bool add, float* dtable) {
  add ? for_each_piece(space, positions_backward_label, shape.context, PositionsBackward<T, true>{shape, dy, dtable})
      : for_each_piece(space, positions_backward_label, shape.context, PositionsBackward<T, false>{shape, dy, dtable});
}

}  // namespace

template <class T>
void embedding_forward(const Stream& stream, const EmbeddingShape& shape, const std::int32_t* tokens, const T* table, T* y) {
  dispatch(stream, [&](const auto& space) { for_each_piece(space, forward_label, shape.count, Forward<T>{shape, tokens, table, y}); });
}
template void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t*, const float*, float*);
template void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t*, const BFloat16*, BFloat16*);

template <class T>
void embedding_backward(const Stream& stream, const EmbeddingShape& shape, const std::int32_t* tokens, const T* dy, const TokenPlaces& places, bool add,
                        float* dtable) {
  dispatch(stream, [&](const auto& space) { run_backward(space, shape, tokens, dy, places, add, dtable); });
}
template void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t*, const float*, const TokenPlaces&, bool, float*);
template void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t*, const BFloat16*, const TokenPlaces&, bool, float*);

template <class T>
void add_positions(const Stream& stream, const PositionShape& shape, const T* table, T* y) {
  dispatch(stream, [&](const auto& space) { for_each_piece(space, add_positions_label, shape.rows, AddPositions<T>{shape, table, y}); });
}
template void add_positions(const Stream&, const PositionShape&, const float*, float*);
template void add_positions(const Stream&, const PositionShape&, const BFloat16*, BFloat16*);

template <class T>
void positions_backward(const Stream& stream, const PositionShape& shape, const T* dy, bool add, float* dtable) {
  dispatch(stream, [&](const auto& space) { run_positions_backward(space, shape, dy, add, dtable); });
}
template void positions_backward(const Stream&, const PositionShape&, const float*, bool, float*);
template void positions_backward(const Stream&, const PositionShape&, const BFloat16*, bool, float*);

}  // namespace trireme::kernels
