// SPDX-License-Identifier: Apache-2.0
//
// Sums over rows (average pooling, gradients of biases) and their broadcast. Called by
// src/ops/pooling.cpp and src/ops/elementwise.cpp.
// Plan: columns are innermost. On the host a piece is a block of columns of one image with an inner
// loop over them. On a device a thread takes a pack of columns, so all accesses are contiguous.
// A device cuts the rows into slices only if there would be too few threads otherwise. A second
// kernel then adds the slices' sums in a fixed order.
// Memory traffic: x is read once and y is written once; with slices, also their partial sums.

#include <tuple>

#include "kernels/space/elements.hpp"
#include "trireme/kernels/pooling.hpp"

namespace trireme::kernels {
namespace {

const std::string sum_label = "trireme/kernels/sum_rows";
const std::string slices_label = "trireme/kernels/sum_slices";
const std::string broadcast_label = "trireme/kernels/broadcast_rows";

// Columns per piece of sum_rows, summed side by side: at least one cache line of each row.
constexpr int block_columns = 64;
// Rows per partial sum. The rounding error grows with 128 + rows / 128 instead of rows.
constexpr std::int64_t chunk_rows = 128;

template <class T, class Out>
struct SumRows {
  RowSums s;
  const T* x;
  Out* y;

  KOKKOS_FUNCTION std::int64_t blocks() const {
    return (s.columns + block_columns - 1) / block_columns;
  }
  KOKKOS_FUNCTION std::int64_t extent(std::int64_t piece) const {
    const std::int64_t left = s.columns - piece % blocks() * block_columns;
    return left < block_columns ? left : block_columns;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t piece, std::int64_t begin, std::int64_t end) const {
    const std::int64_t image = piece / blocks(), column = piece % blocks() * block_columns + begin;
    const T* __restrict source = x + image * s.rows * s.columns + column;
    const int count = static_cast<int>(end - begin);
    float total[block_columns] = {};
    for (std::int64_t chunk = 0; chunk < s.rows; chunk += chunk_rows) {
      const std::int64_t stop = chunk + chunk_rows < s.rows ? chunk + chunk_rows : s.rows;
      float partial[block_columns] = {};
      for (std::int64_t r = chunk; r < stop; ++r) {
        for (int c = 0; c < count; ++c) partial[c] += to_float(source[r * s.columns + c]);
      }
      for (int c = 0; c < count; ++c) total[c] += partial[c];
    }
    Out* __restrict target = y + image * s.columns + column;
    for (int c = 0; c < count; ++c)
      target[c] = from_float<Out>(s.scale * total[c] + (s.add ? to_float(target[c]) : 0.0f));
  }
};

/// Device form of sum_rows: a thread adds a pack of columns of one slice. An image's rows are cut
/// into slices only if there would be too few threads otherwise; then the slices' sums go to
/// partials [batch, slices, columns].
template <class T, class Out>
struct SumSlices {
  RowSums s;
  const T* x;
  Out* y;
  float* partials;
  Divisor slices;
  std::int64_t slice_rows;
  static constexpr int lanes = pack_lanes<T>, rows_at_once = 1, loads = 8;

  SumSlices(const RowSums& sums, const T* from, Out* to, float* parts)
      : s(sums), x(from), y(to), partials(parts), slices(row_slice_count(sums)) {
    slice_rows = (s.rows + slices.value() - 1) / slices.value();
  }

  template <int, int pack>
  KOKKOS_FUNCTION void process(std::int64_t image_and_slice, std::int64_t column) const {
    const std::int64_t image = slices.quotient(image_and_slice),
                       begin = (image_and_slice - image * slices.value()) * slice_rows;
    const std::int64_t end = begin + slice_rows < s.rows ? begin + slice_rows : s.rows;
    const T* source = x + image * s.rows * s.columns + column;
    float total[pack] = {};
    for (std::int64_t chunk = begin; chunk < end; chunk += chunk_rows) {
      const std::int64_t stop = chunk + chunk_rows < end ? chunk + chunk_rows : end;
      float partial[pack] = {};
      std::int64_t row = chunk;
      for (; row + loads <= stop; row += loads) add<loads>(source + row * s.columns, partial);
      TRIREME_ROLLED
      for (; row < stop; ++row) add<1>(source + row * s.columns, partial);
      for (int c = 0; c < pack; ++c) total[c] += partial[c];
    }
    if (slices.value() > 1) {
      store<pack>(total, partials + image_and_slice * s.columns + column);
    } else {
      finish(total, y + image * s.columns + column);
    }
  }

  template <int rows, int pack>
  KOKKOS_FORCEINLINE_FUNCTION void add(const T* source, float (&partial)[pack]) const {
    float values[rows][pack];
    for (int j = 0; j < rows; ++j) load<pack>(source + j * s.columns, values[j]);
    for (int j = 0; j < rows; ++j) {
      for (int c = 0; c < pack; ++c) partial[c] += values[j][c];
    }
  }

  template <int pack>
  KOKKOS_FORCEINLINE_FUNCTION void finish(float (&total)[pack], Out* target) const {
    float before[pack] = {};
    if (s.add) load<pack>(target, before);
    for (int c = 0; c < pack; ++c) total[c] = s.scale * total[c] + before[c];
    store<pack>(total, target);
  }
};

/// y = or += the sums of the slices. A team takes some neighboring columns of an image; each thread
/// adds every 32nd slice of one column.
template <class Space, class Out>
struct AddSlices {
  RowSums s;
  std::int64_t slices;
  const float* partials;
  Out* y;
  static constexpr int team_columns = 32, parts = 32, team = 256;
  static constexpr int scratch_bytes = team_columns * parts * static_cast<int>(sizeof(float));

  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    auto* part_sums = static_cast<float*>(member.team_scratch(0).get_shmem(int{scratch_bytes}));
    const std::int64_t blocks = (s.columns + team_columns - 1) / team_columns,
                       image = member.league_rank() / blocks;
    const std::int64_t first = member.league_rank() % blocks * team_columns;
    const int count =
        static_cast<int>(s.columns - first < team_columns ? s.columns - first : team_columns);
    for (int i = member.team_rank(); i < team_columns * parts; i += member.team_size()) {
      const int column = i % team_columns, part = i / team_columns;
      float sum = 0;
      if (column < count) {
        const float* source = partials + image * slices * s.columns + first + column;
        for (std::int64_t slice = part; slice < slices; slice += parts)
          sum += source[slice * s.columns];
      }
      part_sums[i] = sum;
    }
    member.team_barrier();
    for (int column = member.team_rank(); column < count; column += member.team_size()) {
      float sum = 0;
      for (int part = 0; part < parts; ++part) sum += part_sums[part * team_columns + column];
      Out& target = y[image * s.columns + first + column];
      target = from_float<Out>(s.scale * sum + (s.add ? to_float(target) : 0.0f));
    }
  }
};

struct Scale {
  float scale;
  KOKKOS_FUNCTION float operator()(float x) const { return scale * x; }
};

template <class Space, class Out>
void add_slices(const Space& space, const RowSums& s, std::int64_t slices, const float* partials,
                Out* y) {
  using Body = AddSlices<Space, Out>;
  const std::int64_t blocks = (s.columns + Body::team_columns - 1) / Body::team_columns;
  Kokkos::TeamPolicy<Space> policy(space, static_cast<int>(s.batch * blocks),
                                   team_threads(space, Body::team));
  enqueue(slices_label, policy.set_scratch_size(0, Kokkos::PerTeam(Body::scratch_bytes)),
          Body{s, slices, partials, y});
}

template <class Space, class T, class Out>
void run_sums(const Space& space, const RowSums& s, const T* x, float* partials, Out* y) {
  if constexpr (on_host<Space>) {
    const SumRows<T, Out> sums{s, x, y};
    for_each_piece(space, sum_label, s.batch * sums.blocks(), sums);
  } else {
    if (s.batch <= 0 || s.columns <= 0) return;
    const std::int64_t slices = row_slice_count(s);
    for_each_row(space, sum_label, s.batch * slices, s.columns, packs_fit(x) && packs_fit(y),
                 SumSlices<T, Out>(s, x, y, partials));
    if (slices > 1) add_slices(space, s, slices, partials, y);
  }
}

}  // namespace

std::int64_t row_slice_count(const RowSums& s) {
  // full_device: threads with a pack of 8 columns each and 8 loads in flight. min_slice_rows:
  // minimum rows per slice.
  constexpr std::int64_t full_device = 65536, min_slice_rows = 32;
  const std::int64_t threads = s.batch * ((s.columns + 7) / 8),
                     max_slices = s.rows / min_slice_rows;
  const std::int64_t wanted = threads > 0 ? full_device / threads : 1;
  const std::int64_t slices = wanted < max_slices ? wanted : max_slices;
  return slices > 1 ? slices : 1;
}
std::int64_t row_sum_partial_count(const RowSums& s) {
  return row_slice_count(s) > 1 ? row_slice_count(s) * s.batch * s.columns : 0;
}

template <class T, class Out>
void sum_rows(const Stream& stream, const RowSums& s, const T* x, float* partials, Out* y) {
  dispatch(stream, [=](const auto& space) { run_sums(space, s, x, partials, y); });
}
template void sum_rows(const Stream&, const RowSums&, const float*, float*, float*);
template void sum_rows(const Stream&, const RowSums&, const BFloat16*, float*, float*);
template void sum_rows(const Stream&, const RowSums&, const BFloat16*, float*, BFloat16*);
template void sum_rows(const Stream&, const RowSums&, const Float16*, float*, float*);
template void sum_rows(const Stream&, const RowSums&, const Float16*, float*, Float16*);

template <class T>
void broadcast_rows(const Stream& stream, const RowSums& s, const T* x, T* y) {
  for_each_element(stream, broadcast_label, s.batch * s.rows, s.columns, Scale{s.scale},
                   std::tuple(Matrix<T>{y, s.columns}),
                   std::tuple(Repeated<const T>{x, s.columns, Divisor(s.rows)}));
}
template void broadcast_rows(const Stream&, const RowSums&, const float*, float*);
template void broadcast_rows(const Stream&, const RowSums&, const BFloat16*, BFloat16*);
template void broadcast_rows(const Stream&, const RowSums&, const Float16*, Float16*);

}  // namespace trireme::kernels
