// SPDX-License-Identifier: Apache-2.0
//
// Embedding tables: forward lookup, gradient, and learned positions. Called by
// src/ops/embedding.cpp.
// The gradient is gathered: one thread owns each element of it and adds the rows of dy in ascending
// order, so results do not depend on the number of threads.
// Host: a linked list of occurrences per table row. Device: occurrences are sorted by row,
//
//   CountOccurrences     occurrences per row; each occurrence gets an index in its row's group
//   Scan                 begin of each row in the sorted array
//   GroupOccurrences     each occurrence to its row's group, in the order of the counting threads
//   RankOccurrences      each occurrence to its rank within the group: ascending, one fixed order
//   Runs                 of frequent tokens: sums of runs of 32 occurrences after the first run
//   Gradient             first run, then the sums of the other runs
//
// Blocks of 32 sorted occurrences number the sums of runs: at most one run that is not the first of
// its token begins in each block.
// Memory traffic: dy is read once, the gradient is written once (and read once if it is added to).

#include "trireme/kernels/embedding.hpp"

#include "kernels/space/elements.hpp"

namespace trireme::kernels {
namespace {

const std::string forward_label = "trireme/kernels/embedding_forward";
const std::string occurrences_label = "trireme/kernels/embedding_places";
const std::string count_label = "trireme/kernels/embedding_count";
const std::string scan_label = "trireme/kernels/embedding_scan";
const std::string rank_label = "trireme/kernels/embedding_rank";
const std::string runs_label = "trireme/kernels/embedding_runs";
const std::string backward_label = "trireme/kernels/embedding_backward";
const std::string add_positions_label = "trireme/kernels/add_positions";
const std::string positions_backward_label = "trireme/kernels/positions_backward";

/// Returns the token's row in the table; -1 if the table does not hold it.
KOKKOS_INLINE_FUNCTION std::int64_t table_row(const EmbeddingShape& shape, std::int32_t token) {
  const std::int64_t row = token - shape.first_token;
  return row >= 0 && row < shape.table_rows ? row : -1;
}

template <class T>
struct Forward {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  const T* table;
  T* y;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 4;

  template <int rows, int pack>
  KOKKOS_FUNCTION void process(std::int64_t occurrence, std::int64_t column) const {
    std::int64_t row[rows];
    float values[rows][pack];
    for (int j = 0; j < rows; ++j) row[j] = table_row(shape, tokens[occurrence + j]);
    for (int j = 0; j < rows; ++j) {
      for (int k = 0; k < pack; ++k) values[j][k] = 0;
      if (row[j] >= 0) load<pack>(table + row[j] * shape.width + column, values[j]);
    }
    for (int j = 0; j < rows; ++j)
      store<pack>(values[j], y + (occurrence + j) * shape.width + column);
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.width; }
  KOKKOS_FUNCTION void operator()(std::int64_t occurrence, std::int64_t begin,
                                  std::int64_t end) const {
    const std::int64_t row = table_row(shape, tokens[occurrence]);
    T* __restrict target = y + occurrence * shape.width;
    if (row < 0) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = from_float<T>(0);
      return;
    }
    const T* __restrict source = table + row * shape.width;
    for (std::int64_t i = begin; i < end; ++i) target[i] = source[i];
  }
};

/// Builds the host's linked lists in one task. It costs a few instructions per token, much less
/// than reading the rows of dy.
struct LinkOccurrences {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  TokenOccurrences occurrences;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    for (std::int64_t row = 0; row < shape.table_rows; ++row) occurrences.first[row] = -1;
    for (std::int64_t occurrence = shape.count - 1; occurrence >= 0; --occurrence) {
      const std::int64_t row = table_row(shape, tokens[occurrence]);
      if (row < 0) continue;
      occurrences.next[occurrence] = occurrences.first[row];
      occurrences.first[row] = static_cast<std::int32_t>(occurrence);
    }
  }
};

/// Counts the occurrences of each row; `slots` = the number of occurrences that were counted
/// earlier.
struct CountOccurrences {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  TokenOccurrences occurrences;
  KOKKOS_FUNCTION void operator()(std::int64_t occurrence) const {
    const std::int64_t row = table_row(shape, tokens[occurrence]);
    if (row >= 0)
      occurrences.index_in_row[occurrence] = Kokkos::atomic_fetch_add(&occurrences.first[row], 1);
  }
};

/// Turns the counts in `first` (table_rows + 1 entries, the last one 0) into begins: exclusive
/// prefix sums.
struct Scan {
  using value_type = std::int32_t;
  std::int32_t* first;
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int32_t& sum, bool last_time) const {
    const std::int32_t count = first[row];
    /// Moves each occurrence into its row's group.
    if (last_time) first[row] = sum;
    sum += count;
  }
};

struct GroupOccurrences {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  TokenOccurrences occurrences;
  KOKKOS_FUNCTION void operator()(std::int64_t occurrence) const {
    const std::int64_t row = table_row(shape, tokens[occurrence]);
    if (row >= 0)
      occurrences.next[occurrences.first[row] + occurrences.index_in_row[occurrence]] =
          static_cast<std::int32_t>(occurrence);
  }
};

/// sorted = next, with the occurrences of each row in ascending order.
struct RankOccurrences {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  TokenOccurrences occurrences;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    if (index >= occurrences.first[shape.table_rows]) return;
    const std::int32_t occurrence = occurrences.next[index];
    const std::int64_t row = table_row(shape, tokens[occurrence]);
    const std::int32_t begin = occurrences.first[row], end = occurrences.first[row + 1];
    std::int32_t rank = 0;
    for (std::int32_t other = begin; other < end; ++other)
      rank += occurrences.next[other] < occurrence;
    occurrences.sorted[begin + rank] = occurrence;
  }
};

/// sum += the rows sorted[begin ... end) of dy, with `loads` rows in flight.
template <int loads, int pack, class T>
KOKKOS_FORCEINLINE_FUNCTION void add_occurrences(const T* dy, std::int64_t width,
                                                 const std::int32_t* sorted, std::int64_t begin,
                                                 std::int64_t end, float (&sum)[pack]) {
  std::int64_t at = begin;
  TRIREME_ROLLED
  for (; at + loads <= end; at += loads) {
    float values[loads][pack];
    for (int j = 0; j < loads; ++j) load<pack>(dy + sorted[at + j] * width, values[j]);
    for (int j = 0; j < loads; ++j) {
      for (int k = 0; k < pack; ++k) sum[k] += values[j][k];
    }
  }
  if constexpr (loads > 1) add_occurrences<loads / 2>(dy, width, sorted, at, end, sum);
}

constexpr int gradient_lanes = pack_lanes<float>;

/// The sum of the run that begins in a block of sorted occurrences and is not the first run of its
/// token.
template <class T>
struct Runs {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  const T* dy;
  TokenOccurrences occurrences;
  static constexpr int lanes = gradient_lanes, rows_at_once = 1;

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t block, std::int64_t column) const {
    const std::int64_t from = block * occurrences_per_run;
    if (from >= occurrences.first[shape.table_rows]) return;
    const std::int64_t row = table_row(shape, tokens[occurrences.sorted[from]]),
                       end = occurrences.first[row + 1];
    const std::int64_t begin = from + occurrences.first[row] % occurrences_per_run;
    if (begin >= end || begin < occurrences.first[row] + occurrences_per_run) return;
    float sum[pack] = {};
    add_occurrences<8>(dy + column, shape.width, occurrences.sorted, begin,
                       begin + occurrences_per_run < end ? begin + occurrences_per_run : end, sum);
    store<pack>(sum, occurrences.partials + block * shape.width + column);
  }
};

/// One row of the gradient.
template <class T, bool add>
struct Gradient {
  EmbeddingShape shape;
  const T* dy;
  TokenOccurrences occurrences;
  float* dtable;
  static constexpr int lanes = gradient_lanes, rows_at_once = 1;

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t row, std::int64_t column) const {
    const std::int64_t begin = occurrences.first[row], end = occurrences.first[row + 1];
    float* target = dtable + row * shape.width + column;
    float sum[pack] = {};
    if constexpr (add) {
      if (begin == end) return;
      load<pack>(target, sum);
    }
    add_occurrences<4>(dy + column, shape.width, occurrences.sorted, begin,
                       begin + occurrences_per_run < end ? begin + occurrences_per_run : end, sum);
    if (begin + occurrences_per_run < end) {
      const float* partial = occurrences.partials + column;
      const std::int64_t first = (begin + occurrences_per_run) / occurrences_per_run,
                         last = first + (end - begin - 1) / occurrences_per_run;
      add_rows<8>(partial, first, last, sum);
    }
    store<pack>(sum, target);
  }

  template <int loads, int pack>
  KOKKOS_FORCEINLINE_FUNCTION void add_rows(const float* partial, std::int64_t at, std::int64_t end,
                                            float (&sum)[pack]) const {
    TRIREME_ROLLED
    for (; at + loads <= end; at += loads) {
      float values[loads][pack];
      for (int j = 0; j < loads; ++j) load<pack>(partial + (at + j) * shape.width, values[j]);
      for (int j = 0; j < loads; ++j) {
        for (int k = 0; k < pack; ++k) sum[k] += values[j][k];
      }
    }
    if constexpr (loads > 1) add_rows<loads / 2>(partial, at, end, sum);
  }
};

/// Neighboring pieces usually go to one thread, and frequent tokens have neighboring, low numbers.
/// So neighboring pieces are rows `stripes` apart: every thread gets its share of the frequent
/// tokens.
constexpr std::int64_t stripes = 64;

/// Host form of the gradient: follows the list of each row.
template <class T, bool add>
struct Backward {
  EmbeddingShape shape;
  const T* dy;
  TokenOccurrences occurrences;
  float* dtable;

  KOKKOS_FUNCTION std::int64_t rows_of_stripe() const {
    return (shape.table_rows + stripes - 1) / stripes;
  }
  KOKKOS_FUNCTION std::int64_t row_of(std::int64_t piece) const {
    return piece % rows_of_stripe() * stripes + piece / rows_of_stripe();
  }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    return row_of(piece) < shape.table_rows ? shape.width : 0;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    if (begin >= end) return;
    const std::int64_t row = row_of(piece);
    float* __restrict target = dtable + row * shape.width;
    if constexpr (!add) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = 0;
    }
    for (std::int64_t occurrence = occurrences.first[row]; occurrence >= 0;
         occurrence = occurrences.next[occurrence]) {
      const T* __restrict source = dy + occurrence * shape.width;
      for (std::int64_t i = begin; i < end; ++i) target[i] += to_float(source[i]);
    }
  }
};

/// Gradient of the position table. Requires first_row < context.
template <class T, bool add>
struct PositionsBackward {
  PositionShape shape;
  const T* dy;
  float* dtable;
  static constexpr int lanes = gradient_lanes, rows_at_once = 1, loads = 4;

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t position, std::int64_t column) const {
    float* target = dtable + position * shape.width + column;
    float sum[pack] = {};
    if constexpr (add) load<pack>(target, sum);
    std::int64_t row =
        position - shape.first_row + (position < shape.first_row ? shape.context : 0);
    TRIREME_ROLLED
    for (; row + (loads - 1) * shape.context < shape.rows; row += loads * shape.context)
      add_rows<loads>(row, column, sum);
    TRIREME_ROLLED
    for (; row < shape.rows; row += shape.context) add_rows<1>(row, column, sum);
    store<pack>(sum, target);
  }
  template <int rows, int pack>
  KOKKOS_FORCEINLINE_FUNCTION void add_rows(std::int64_t row, std::int64_t column,
                                            float (&sum)[pack]) const {
    float values[rows][pack];
    for (int j = 0; j < rows; ++j)
      load<pack>(dy + (row + j * shape.context) * shape.width + column, values[j]);
    for (int j = 0; j < rows; ++j) {
      for (int k = 0; k < pack; ++k) sum[k] += values[j][k];
    }
  }

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.width; }
  KOKKOS_FUNCTION void operator()(std::int64_t position, std::int64_t begin,
                                  std::int64_t end) const {
    float* __restrict target = dtable + position * shape.width;
    if constexpr (!add) {
      for (std::int64_t i = begin; i < end; ++i) target[i] = 0;
    }
    const std::int64_t first = (position - shape.first_row + shape.context) % shape.context;
    for (std::int64_t row = first; row < shape.rows; row += shape.context) {
      const T* __restrict source = dy + row * shape.width;
      for (std::int64_t i = begin; i < end; ++i) target[i] += to_float(source[i]);
    }
  }
};

struct Sum {
  KOKKOS_FUNCTION float operator()(float a, float b) const { return a + b; }
};

struct SetToZero {
  std::int32_t* numbers;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { numbers[i] = 0; }
};

/// Sorts the occurrences by row in five launches.
template <class Space>
void sort_occurrences(const Space& space, const EmbeddingShape& shape, const std::int32_t* tokens,
                      const TokenOccurrences& occurrences) {
  for_each_index(space, occurrences_label, shape.table_rows + 1, SetToZero{occurrences.first});
  for_each_index(space, count_label, shape.count, CountOccurrences{shape, tokens, occurrences});
  enqueue_scan(
      scan_label,
      Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, shape.table_rows + 1),
      Scan{occurrences.first});
  for_each_index(space, occurrences_label, shape.count,
                 GroupOccurrences{shape, tokens, occurrences});
  for_each_index(space, rank_label, shape.count, RankOccurrences{shape, tokens, occurrences});
}

template <bool add, class Space, class T>
void run_backward(const Space& space, const EmbeddingShape& shape, const std::int32_t* tokens,
                  const T* dy, const TokenOccurrences& occurrences, float* dtable) {
  if constexpr (on_host<Space>) {
    for_each_index(space, occurrences_label, 1, LinkOccurrences{shape, tokens, occurrences});
    const Backward<T, add> backward{shape, dy, occurrences, dtable};
    for_each_piece(space, backward_label, stripes * backward.rows_of_stripe(), backward);
  } else {
    sort_occurrences(space, shape, tokens, occurrences);
    const bool packed = packs_fit(dy) && packs_fit(dtable, occurrences.partials);
    for_each_row(space, runs_label, embedding_run_count(shape), shape.width, packed,
                 Runs<T>{shape, tokens, dy, occurrences});
    for_each_row(space, backward_label, shape.table_rows, shape.width, packed,
                 Gradient<T, add>{shape, dy, occurrences, dtable});
  }
}

template <bool add, class Space, class T>
void run_positions_backward(const Space& space, PositionShape shape, const T* dy, float* dtable) {
  shape.first_row %= shape.context;
  for_each_row(space, positions_backward_label, shape.context, shape.width,
               packs_fit(dy) && packs_fit(dtable), PositionsBackward<T, add>{shape, dy, dtable});
}

}  // namespace

std::int64_t embedding_run_count(const EmbeddingShape& shape) {
  return (shape.count + occurrences_per_run - 1) / occurrences_per_run;
}

template <class T>
void embedding_forward(const Stream& stream, const EmbeddingShape& shape,
                       const std::int32_t* tokens, const T* table, T* y) {
  dispatch(stream, [=](const auto& space) {
    for_each_row(space, forward_label, shape.count, shape.width, packs_fit(table, y),
                 Forward<T>{shape, tokens, table, y});
  });
}
template void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t*,
                                const float*, float*);
template void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t*,
                                const BFloat16*, BFloat16*);
template void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t*,
                                const Float16*, Float16*);

template <class T>
void embedding_backward(const Stream& stream, const EmbeddingShape& shape,
                        const std::int32_t* tokens, const T* dy,
                        const TokenOccurrences& occurrences, bool add, float* dtable) {
  dispatch(stream, [=](const auto& space) {
    add ? run_backward<true>(space, shape, tokens, dy, occurrences, dtable)
        : run_backward<false>(space, shape, tokens, dy, occurrences, dtable);
  });
}
template void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t*,
                                 const float*, const TokenOccurrences&, bool, float*);
template void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t*,
                                 const BFloat16*, const TokenOccurrences&, bool, float*);
template void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t*,
                                 const Float16*, const TokenOccurrences&, bool, float*);

template <class T>
void add_positions(const Stream& stream, const PositionShape& shape, const T* table, T* y) {
  const std::int64_t first = shape.first_row % shape.context;
  for_each_element(stream, add_positions_label, shape.rows, shape.width, Sum{},
                   std::tuple(Matrix<T>{y, shape.width}),
                   std::tuple(Matrix<const T>{y, shape.width},
                              Cyclic<const T>{table, shape.width, first, Divisor(shape.context)}));
}
template void add_positions(const Stream&, const PositionShape&, const float*, float*);
template void add_positions(const Stream&, const PositionShape&, const BFloat16*, BFloat16*);
template void add_positions(const Stream&, const PositionShape&, const Float16*, Float16*);

template <class T>
void positions_backward(const Stream& stream, const PositionShape& shape, const T* dy, bool add,
                        float* dtable) {
  dispatch(stream, [=](const auto& space) {
    add ? run_positions_backward<true>(space, shape, dy, dtable)
        : run_positions_backward<false>(space, shape, dy, dtable);
  });
}
template void positions_backward(const Stream&, const PositionShape&, const float*, bool, float*);
template void positions_backward(const Stream&, const PositionShape&, const BFloat16*, bool,
                                 float*);
template void positions_backward(const Stream&, const PositionShape&, const Float16*, bool, float*);

}  // namespace trireme::kernels
