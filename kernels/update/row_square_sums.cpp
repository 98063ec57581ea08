// SPDX-License-Identifier: Apache-2.0
//
// Square sums of the rows of a flat buffer, from which norms are built. Called by
// src/ops/update/update.cpp. The order of a sum depends on the length of the row only.

#include "clipping.hpp"
#include "kernels/space/pack.hpp"
#include "kernels/space/row_group.hpp"

namespace trireme::kernels {
namespace {

const std::string square_label = "trireme/kernels/row_square_sums";

/// Square sum of one row in 32 double-precision lanes: element i is added to lane i % 32; the lanes
/// are added pairwise. `clip`: NoClip or Clip.
template <class Clipping>
struct RowSquareSum {
  static constexpr int lanes = 32;
  const float* flat;
  const FlatRow* rows;
  double* sums;
  Clipping clip;

  KOKKOS_FUNCTION void operator()(std::int64_t index, const HostGroup&) const {
    const Clipping clipped = clip;
    const float* x = flat + rows[index].offset;
    const std::int64_t count = rows[index].elements;
    double sum[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        const auto value = static_cast<double>(clipped(x[i + lane]));
        sum[lane] += value * value;
      }
    }
    for (int lane = 0; i < count; ++i, ++lane) {
      const auto value = static_cast<double>(clipped(x[i]));
      sum[lane] += value * value;
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
    }
    sums[index] = sum[0];
  }
};

/// Square sums of rows, by warps. A warp takes some rows: short rows one per thread, the others one
/// after another with four neighboring elements per thread.
/// The order of a sum depends on the row's length only. If packs are not aligned, the same threads
/// take the same elements one by one. `clip`: NoClip or Clip.
template <class Clipping>
struct RowSquareSumByTeam {
  static constexpr int threads = 32, lanes = 4, unroll = 4;
  static constexpr std::int64_t short_row = 8;
  const float* flat;
  const FlatRow* rows;
  std::int64_t row_count, rows_per_team;
  double* sums;
  Clipping clip;

  /// Returns the square of an element.
  KOKKOS_FORCEINLINE_FUNCTION double square(float x) const {
    const auto value = static_cast<double>(clip(x));
    return value * value;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    const std::int64_t begin = index * rows_per_team,
                       end = begin + rows_per_team < row_count ? begin + rows_per_team : row_count;
    for (std::int64_t row = begin + group.first(); row < end; row += group.step()) {
      if (rows[row].elements > short_row) continue;
      const float* x = flat + rows[row].offset;
      double sum = 0;
      for (std::int64_t i = 0; i < rows[row].elements; ++i) sum += square(x[i]);
      sums[row] = sum;
    }
    for (std::int64_t row = begin; row < end; ++row) {
      if (rows[row].elements <= short_row) continue;
      const float* x = flat + rows[row].offset;
      Sums<1> sum;
      const bool aligned = reinterpret_cast<std::uintptr_t>(x) % pack_bytes == 0;
      sum.value[0] = aligned ? sum_of_thread<true>(x, rows[row].elements, group)
                             : sum_of_thread<false>(x, rows[row].elements, group);
      group.add_up(sum);
      if (group.is_leader()) sums[row] = sum.value[0];
    }
  }

  template <bool aligned, class Group>
  KOKKOS_FUNCTION double sum_of_thread(const float* x, std::int64_t count,
                                       const Group& group) const {
    const int stride = static_cast<int>(group.step()) * lanes, elements = static_cast<int>(count),
              packed = elements / lanes * lanes;
    double sum[lanes] = {};
    for (int i = static_cast<int>(group.first()) * lanes; i < packed; i += unroll * stride) {
      float value[unroll][lanes];
      for (int k = 0; k < unroll; ++k) {
        if (i + k * stride >= packed) continue;
        if constexpr (aligned) {
          load<lanes>(x + i + k * stride, value[k]);
        } else {
          for (int lane = 0; lane < lanes; ++lane) value[k][lane] = x[i + k * stride + lane];
        }
      }
      for (int k = 0; k < unroll; ++k) {
        if (i + k * stride >= packed) continue;
        for (int lane = 0; lane < lanes; ++lane) sum[lane] += square(value[k][lane]);
      }
    }
    for (int i = packed + static_cast<int>(group.first()); i < elements;
         i += static_cast<int>(group.step())) {
      sum[0] += square(x[i]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
};

template <class Space, class Clipping>
void run_square_sums(const Space& space, const float* flat, const FlatRow* rows,
                     std::int64_t row_count, double* sums, const Clipping& clip) {
  if constexpr (on_host<Space>) {
    for_each_group(space, square_label, row_count, RowSquareSum<Clipping>{flat, rows, sums, clip});
  } else {
    // Several times the warps that a GPU holds at once; at most one row per thread.
    constexpr std::int64_t teams = 16384, max_rows_per_team = 32;
    const std::int64_t rows_per_team = row_count < 2 * teams                   ? 1
                                       : row_count < max_rows_per_team * teams ? row_count / teams
                                                                               : max_rows_per_team;
    for_each_team(space, square_label, (row_count + rows_per_team - 1) / rows_per_team,
                  RowSquareSumByTeam<Clipping>::threads,
                  RowSquareSumByTeam<Clipping>{flat, rows, row_count, rows_per_team, sums, clip});
  }
}

}  // namespace

void row_square_sums(const Stream& stream, const float* flat, const FlatRow* rows,
                     std::int64_t row_count, double* sums, float limit) {
  with_clipping(limit, [=, &stream](const auto& clip) {
    dispatch(stream,
             [=](const auto& space) { run_square_sums(space, flat, rows, row_count, sums, clip); });
  });
}

}  // namespace trireme::kernels
