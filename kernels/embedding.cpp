#include "trireme/kernels/embedding.hpp"

#include "elements.hpp"

// Rows of tables. Gradients are gathered, not scattered: each element of the gradient is one
// thread's alone, which adds the rows of dy in ascending order of their places, so nothing depends
// on the number of threads. dy is read once and the gradient written once (where it is added to,
// read as well). The places of a token: on the host a list. On a device they are sorted by token:
// counted, the counts summed up, each place put where its token's begin in whatever order the
// threads come, then moved to its rank among them. Of a token with many places the first
// `run_places` are added up as on the host, each further run of as many into a partial sum, which
// are added in ascending order. A run that is not the first begins in at most one block of
// run_places sorted places, for it would be the same token's next one: so partial sums are numbered
// by these blocks.

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

/// The token's row of the table; -1: not in it.
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

/// The host's lists, made by one task: a list is a few instructions a token, nothing beside the
/// rows of dy.
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

/// `slots`: places of the same token that came before.
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

/// `first` of table_rows + 1 rows, the last of 0: from counts to their sums before.
struct Scan {
  using value_type = std::int32_t;
  std::int32_t* first;
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int32_t& sum, bool last_time) const {
    const std::int32_t count = first[row];
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

/// sorted = next with the places of each token in ascending order.
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

/// sum += rows sorted[begin ... end) of dy.
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

/// The partial sum of a block of run_places sorted places: of the run that begins in it and is not
/// the first of its token.
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

/// A row of the gradient.
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

/// Pieces that lie side by side are given to one thread. Frequent tokens have neighbouring, low
/// numbers: so neighbouring pieces are rows of the table that lie `stripes` apart, and each thread
/// gets its share of the frequent ones.
constexpr std::int64_t stripes = 64;

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

/// first_row < context.
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

template <class Space>
void sort_occurrences(const Space& space, const EmbeddingShape& shape, const std::int32_t* tokens,
                      const TokenOccurrences& occurrences) {
  for_each_index(space, occurrences_label, shape.table_rows + 1, SetToZero{occurrences.first});
  for_each_index(space, count_label, shape.count, CountOccurrences{shape, tokens, occurrences});
  Kokkos::parallel_scan(
      Label{scan_label},
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
