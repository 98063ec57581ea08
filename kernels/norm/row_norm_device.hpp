// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of layer norm and RMS norm (formulas: row_norm.cpp). A team takes a row, and its
// threads hold their packs in registers between the sums and the result.
// Several rows are processed at once. They share the loads of gamma and beta and each reduction.
//
//   forward    load 2 rows | sum -> mean | sum of squares -> rstd | y
//   backward   a team takes a share of the rows, 4 at a time:
//              load x, dy, dresidual | two sums per row | dx; dgamma and dbeta stay in registers
//              after its last row: write the team's dgamma and dbeta to the workspace
//   then       ParametersByTeam adds the teams' shares
//
// Columns beyond the registers of a team are read again, and their dgamma and dbeta are added in
// memory.

#include <cmath>
#include <type_traits>

#include "kernels/space/pack.hpp"
#include "kernels/space/row_group.hpp"
#include "trireme/kernels/norm/row_norm.hpp"

namespace trireme::kernels {

/// Returns whether rows consist of whole packs.
template <class T>
bool row_packs_fit(const RowNormShape& shape) {
  return shape.width % pack_lanes<T> == 0;
}

template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION float sum_of_pack(const float (&value)[lanes]) {
  float sum = 0;
  for (int k = 0; k < lanes; ++k) sum += value[k];
  return sum;
}

/// A pack as loaded, not yet converted: half the registers of float32 numbers for bfloat16, and no
/// instruction waits for the load until unpack().
template <class T, int lanes>
class RawPack {
 public:
  KOKKOS_FORCEINLINE_FUNCTION void fetch(const T* from) {
    for (int w = 0; w < words; ++w) words_[w] = reinterpret_cast<const Word*>(from)[w];
  }
  KOKKOS_FORCEINLINE_FUNCTION void unpack(float (&to)[lanes]) const {
    load<lanes>(reinterpret_cast<const T*>(words_), to);
  }

 private:
  static constexpr bool whole = lanes % pack_lanes<T> == 0;
  static constexpr int words = whole ? lanes / pack_lanes<T> : lanes;
  using Word = std::conditional_t<whole, PackWords, T>;
  Word words_[words];
};

/// Forward pass. A thread holds `held` packs of a row; only its last one may be missing. `more`:
/// none is missing, and the row has packs beyond the held ones.
template <class T, int lanes, int held, bool more, bool bias>
struct ForwardByTeam {
  static constexpr int rows_at_once = 2;
  RowNormShape shape;
  RowNormForward<T> args;
  /// 1 / width
  float scale;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    const std::int64_t width = shape.width, row = index * rows_at_once;
    const bool has_second_row = row + 1 < shape.rows;
    const T *x0 = args.x + row * width, *x1 = has_second_row ? x0 + width : x0;
    T *y0 = args.y + row * width, *y1 = y0 + width;
    const int packs = static_cast<int>(width / lanes), first = static_cast<int>(group.first()),
              step = static_cast<int>(group.step());
    const int last = first + (held - 1) * step;
    // If this thread's last pack does not exist, the thread reads the row's last pack instead and
    // ignores it in the sums.
    const bool whole = more || last < packs;
    const auto pack_of = [=](int h) {
      return h + 1 < held || whole ? first + h * step : packs - 1;
    };
    RawPack<T, lanes> raw0[held], raw1[held];
    for (int h = 0; h < held; ++h) {
      raw0[h].fetch(x0 + pack_of(h) * lanes);
      raw1[h].fetch(x1 + pack_of(h) * lanes);
    }
    float held0[held][lanes], held1[held][lanes];
    for (int h = 0; h < held; ++h) {
      raw0[h].unpack(held0[h]);
      raw1[h].unpack(held1[h]);
    }
    float mean0 = 0, mean1 = 0;
    // Calls process(pack, counts, first row's values less its mean, second row's) for all packs of
    // this thread. `counts` is false for a pack that the thread reads instead of a missing one.
    const auto for_each_pack_of_thread = [&](const auto& process) {
      for (int h = 0; h < held; ++h) process(pack_of(h), h + 1 < held || whole, held0[h], held1[h]);
      for (int pack = last + step; more && pack < packs; pack += step) {
        float more0[lanes], more1[lanes];
        load<lanes>(x0 + pack * lanes, more0);
        load<lanes>(x1 + pack * lanes, more1);
        subtract_mean(more0, mean0);
        subtract_mean(more1, mean1);
        process(pack, true, more0, more1);
      }
    };

    if (!shape.rms) {
      Sums<2, float> sums;
      for_each_pack_of_thread(
          [&](int, bool counts, const float (&v0)[lanes], const float (&v1)[lanes]) {
            sums.value[0] += counts ? sum_of_pack(v0) : 0.0f;
            sums.value[1] += counts ? sum_of_pack(v1) : 0.0f;
          });
      group.add_up(sums);
      mean0 = sums.value[0] * scale;
      mean1 = sums.value[1] * scale;
      for (int h = 0; h < held; ++h) {
        subtract_mean(held0[h], mean0);
        subtract_mean(held1[h], mean1);
      }
    }
    Sums<2, float> squares;
    for_each_pack_of_thread(
        [&](int, bool counts, const float (&v0)[lanes], const float (&v1)[lanes]) {
          squares.value[0] += counts ? squares_of_pack(v0) : 0.0f;
          squares.value[1] += counts ? squares_of_pack(v1) : 0.0f;
        });
    group.add_up(squares);
    const float rstd0 = rstd_of(squares.value[0]), rstd1 = rstd_of(squares.value[1]);
    if (group.is_leader()) {
      store_statistics(row, mean0, rstd0);
      if (has_second_row) store_statistics(row + 1, mean1, rstd1);
    }
    for_each_pack_of_thread(
        [&](int pack, bool counts, const float (&v0)[lanes], const float (&v1)[lanes]) {
          if (!counts) return;
          float gamma[lanes], beta[lanes] = {};
          load<lanes>(args.gamma + pack * lanes, gamma);
          if constexpr (bias) load<lanes>(args.beta + pack * lanes, beta);
          store_result(v0, rstd0, gamma, beta, y0 + pack * lanes);
          if (has_second_row) store_result(v1, rstd1, gamma, beta, y1 + pack * lanes);
        });
  }

  KOKKOS_FUNCTION float rstd_of(float squares) const {
    return 1 / sqrtf(squares * scale + args.epsilon);
  }
  KOKKOS_FUNCTION void store_statistics(std::int64_t row, float mean, float rstd) const {
    if (!shape.rms) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
  KOKKOS_FORCEINLINE_FUNCTION static void subtract_mean(float (&value)[lanes], float mean) {
    for (int k = 0; k < lanes; ++k) value[k] -= mean;
  }
  KOKKOS_FORCEINLINE_FUNCTION static float squares_of_pack(const float (&value)[lanes]) {
    float sum = 0;
    for (int k = 0; k < lanes; ++k) sum += value[k] * value[k];
    return sum;
  }
  KOKKOS_FORCEINLINE_FUNCTION static void store_result(const float (&centered)[lanes], float rstd,
                                                       const float (&gamma)[lanes],
                                                       const float (&beta)[lanes], T* y) {
    float result[lanes];
    for (int k = 0; k < lanes; ++k) {
      result[k] = centered[k] * rstd * gamma[k];
      if constexpr (bias) result[k] += beta[k];
    }
    store<lanes>(result, y);
  }
};

// Columns that the threads of a team hold with one pack each.
constexpr std::int64_t backward_width = 2048;

/// Returns the threads of a backward team.
template <int lanes>
int backward_team(const RowNormShape& shape) {
  constexpr int max_threads = lanes == 1 ? 256 : static_cast<int>(backward_width / lanes);
  return threads_for(shape.width / lanes, 1, max_threads);
}

/// Returns the rows of a backward team: enough that a GPU of about 132 multiprocessors holds all
/// teams at once, and a multiple of the rows processed at once.
inline std::int64_t rows_per_team(const RowNormShape& shape, int threads) {
  constexpr std::int64_t multiprocessors = 132, resident_threads = 448, rows_at_once = 4;
  const std::int64_t teams =
      multiprocessors * (threads < resident_threads ? resident_threads / threads : 1);
  const std::int64_t steps = (shape.rows + teams * rows_at_once - 1) / (teams * rows_at_once);
  return (steps > 0 ? steps : 1) * rows_at_once;
}

/// Returns the maximum number of backward teams for any element type: that of the narrowest.
inline std::int64_t max_row_norm_teams(const RowNormShape& shape) {
  const std::int64_t rows = rows_per_team(shape, backward_team<pack_lanes<BFloat16>>(shape));
  return (shape.rows + rows - 1) / rows;
}

/// Backward pass. `more`: the row has packs beyond those that the team's threads hold.
template <class T, int lanes, bool more, bool residual>
struct BackwardByTeam {
  static constexpr int rows_at_once = 4;
  RowNormShape shape;
  RowNormBackward<T> args;
  /// per team
  std::int64_t rows;
  /// 1 / width
  float scale;

  /// Columns of a thread, the same for all rows: its own pack and the packs beyond those of the
  /// team. A thread without a pack of its own reads the row's last one and ignores it.
  struct Columns {
    int packs, first, step, pack;
    bool holds;
    float gamma[lanes] = {}, dgamma[lanes] = {}, dbeta[lanes] = {};
    float *more_dgamma, *more_dbeta;
  };

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t team, const Group& group) const {
    const std::int64_t begin = team * rows,
                       end = begin + rows < shape.rows ? begin + rows : shape.rows;
    Columns c;
    c.packs = static_cast<int>(shape.width / lanes);
    c.first = static_cast<int>(group.first());
    c.step = static_cast<int>(group.step());
    c.holds = c.first < c.packs;
    c.pack = c.holds ? c.first : c.packs - 1;
    c.more_dgamma = args.partials + team * 2 * shape.width;
    c.more_dbeta = c.more_dgamma + shape.width;
    for (int pack = c.first + c.step; more && pack < c.packs; pack += c.step) {
      store<lanes>(c.dgamma, c.more_dgamma + pack * lanes);
      store<lanes>(c.dbeta, c.more_dbeta + pack * lanes);
    }
    load<lanes>(args.gamma + c.pack * lanes, c.gamma);
    std::int64_t row = begin;
    for (; row + rows_at_once <= end; row += rows_at_once) process<rows_at_once>(row, group, c);
    for (; row < end; ++row) process<1>(row, group, c);
    if (!c.holds) return;
    store<lanes>(c.dgamma, c.more_dgamma + c.pack * lanes);
    store<lanes>(c.dbeta, c.more_dbeta + c.pack * lanes);
  }

  /// Processes rows [row, row + count).
  template <int count, class Group>
  KOKKOS_FORCEINLINE_FUNCTION void process(std::int64_t row, const Group& group, Columns& c) const {
    const std::int64_t width = shape.width, at = row * width + c.pack * lanes;
    RawPack<T, lanes> raw_x[count], raw_dy[count], raw_residual[count];
    float mean[count], rstd[count];
    for (int r = 0; r < count; ++r) {
      raw_x[r].fetch(args.x + at + r * width);
      raw_dy[r].fetch(args.dy + at + r * width);
      if constexpr (residual) raw_residual[r].fetch(args.dresidual + at + r * width);
    }
    for (int r = 0; r < count; ++r) {
      mean[r] = shape.rms ? 0.0f : args.mean[row + r];
      rstd[r] = args.rstd[row + r];
    }
    // `x` less its mean from add_sums() on.
    float x[count][lanes], dy[count][lanes];
    Sums<2 * count, float> sums;
    for (int r = 0; r < count; ++r) {
      raw_x[r].unpack(x[r]);
      raw_dy[r].unpack(dy[r]);
      float sum_of_g = 0, sum_of_products = 0;
      add_sums(x[r], dy[r], c.gamma, mean[r], sum_of_g, sum_of_products);
      sums.value[2 * r] = c.holds ? sum_of_g : 0;
      sums.value[2 * r + 1] = c.holds ? sum_of_products : 0;
    }
    for (int pack = c.first + c.step; more && pack < c.packs; pack += c.step) {
      float gamma[lanes];
      load<lanes>(args.gamma + pack * lanes, gamma);
      for (int r = 0; r < count; ++r) {
        float more_x[lanes], more_dy[lanes];
        load<lanes>(args.x + (row + r) * width + pack * lanes, more_x);
        load<lanes>(args.dy + (row + r) * width + pack * lanes, more_dy);
        add_sums(more_x, more_dy, gamma, mean[r], sums.value[2 * r], sums.value[2 * r + 1]);
      }
    }
    group.add_up(sums);
    // Means of g and of g * xhat.
    float level[count], slope[count];
    for (int r = 0; r < count; ++r) {
      level[r] = shape.rms ? 0.0f : sums.value[2 * r] * scale;
      slope[r] = sums.value[2 * r + 1] * scale * rstd[r];
    }
    if (c.holds) {
      for (int r = 0; r < count; ++r) {
        float residual_gradient[lanes] = {};
        if constexpr (residual) raw_residual[r].unpack(residual_gradient);
        finish(x[r], dy[r], residual_gradient, c.gamma, rstd[r], level[r], slope[r], c.dgamma,
               c.dbeta, args.dx + at + r * width);
      }
    }
    for (int pack = c.first + c.step; more && pack < c.packs; pack += c.step) {
      float gamma[lanes], dgamma[lanes], dbeta[lanes];
      load<lanes>(args.gamma + pack * lanes, gamma);
      load<lanes>(c.more_dgamma + pack * lanes, dgamma);
      load<lanes>(c.more_dbeta + pack * lanes, dbeta);
      for (int r = 0; r < count; ++r) {
        const std::int64_t place = (row + r) * width + pack * lanes;
        float more_x[lanes], more_dy[lanes], residual_gradient[lanes] = {};
        load<lanes>(args.x + place, more_x);
        load<lanes>(args.dy + place, more_dy);
        if constexpr (residual) load<lanes>(args.dresidual + place, residual_gradient);
        for (int k = 0; k < lanes; ++k) more_x[k] -= mean[r];
        finish(more_x, more_dy, residual_gradient, gamma, rstd[r], level[r], slope[r], dgamma,
               dbeta, args.dx + place);
      }
      store<lanes>(dgamma, c.more_dgamma + pack * lanes);
      store<lanes>(dbeta, c.more_dbeta + pack * lanes);
    }
  }

  /// x -= mean; level += sum of g; slope += sum of g * x.
  KOKKOS_FORCEINLINE_FUNCTION static void add_sums(float (&x)[lanes], const float (&dy)[lanes],
                                                   const float (&gamma)[lanes], float mean,
                                                   float& level, float& slope) {
    float of_pack = 0, products = 0;
    for (int k = 0; k < lanes; ++k) {
      const float g = dy[k] * gamma[k];
      x[k] -= mean;
      of_pack += g;
      products += g * x[k];
    }
    level += of_pack;
    slope += products;
  }

  /// Writes dx of one pack and adds to its dgamma and dbeta.
  KOKKOS_FORCEINLINE_FUNCTION static void finish(const float (&x)[lanes], const float (&dy)[lanes],
                                                 const float (&residual_gradient)[lanes],
                                                 const float (&gamma)[lanes], float rstd,
                                                 float level, float slope, float (&dgamma)[lanes],
                                                 float (&dbeta)[lanes], T* dx) {
    float value[lanes];
    for (int k = 0; k < lanes; ++k) {
      const float xhat = x[k] * rstd;
      dgamma[k] += dy[k] * xhat;
      dbeta[k] += dy[k];
      value[k] = rstd * (dy[k] * gamma[k] - level - xhat * slope);
      if constexpr (residual) value[k] += residual_gradient[k];
    }
    store<lanes>(value, dx);
  }
};

/// Adds the teams' shares [teams, 2, width] to dgamma and dbeta. A team takes some columns of one
/// of the two, in `slots` interleaved runs of shares.
template <class Space>
struct ParametersByTeam {
  static constexpr int columns = 16, slots = 32, unroll = 4;
  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  static constexpr int scratch_bytes = columns * slots * static_cast<int>(sizeof(double));
  std::int64_t shares, width;
  const float* partials;
  float *dgamma, *dbeta;
  bool add;

  KOKKOS_FUNCTION std::int64_t blocks() const { return (width + columns - 1) / columns; }

  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const std::int64_t which = member.league_rank() / blocks(),
                       begin = member.league_rank() % blocks() * columns;
    const int count = static_cast<int>(width - begin < columns ? width - begin : columns);
    auto* totals = static_cast<double*>(member.team_scratch(0).get_shmem(int{scratch_bytes}));
    for (int item = member.team_rank(); item < columns * slots; item += member.team_size()) {
      const int column = item % columns, slot = item / columns;
      double total = 0;
      const float* share = partials + which * width + begin + column;
      for (std::int64_t s = slot; column < count && s < shares; s += unroll * slots) {
        float value[unroll];
        for (int k = 0; k < unroll; ++k)
          value[k] = s + k * slots < shares ? share[(s + k * slots) * 2 * width] : 0.0f;
        for (int k = 0; k < unroll; ++k) total += value[k];
      }
      totals[item] = total;
    }
    for (int half = slots / 2; half > 0; half /= 2) {
      member.team_barrier();
      for (int item = member.team_rank(); item < columns * half; item += member.team_size())
        totals[item] += totals[item + columns * half];
    }
    member.team_barrier();
    float* out = (which == 0 ? dgamma : dbeta) + begin;
    for (int column = member.team_rank(); column < count; column += member.team_size()) {
      out[column] = static_cast<float>(totals[column]) + (add ? out[column] : 0.0f);
    }
  }
};

template <int lanes, int held, bool more, class Space, class T>
void row_norm_forward_held(const Space& space, const std::string& label, const RowNormShape& shape,
                           const RowNormForward<T>& args, int threads) {
  constexpr int rows = ForwardByTeam<T, lanes, held, more, true>::rows_at_once;
  const std::int64_t teams = (shape.rows + rows - 1) / rows;
  const float scale = 1 / static_cast<float>(shape.width);
  args.beta != nullptr
      ? for_each_team(space, label, teams, threads,
                      ForwardByTeam<T, lanes, held, more, true>{shape, args, scale})
      : for_each_team(space, label, teams, threads,
                      ForwardByTeam<T, lanes, held, more, false>{shape, args, scale});
}

template <class Space, class T>
void row_norm_forward_by_teams(const Space& space, const std::string& label,
                               const RowNormShape& shape, const RowNormForward<T>& args) {
  constexpr int lanes = pack_lanes<T>, max_held = 4, max_threads = 256;
  const bool packed =
      row_packs_fit<T>(shape) && packs_fit(args.x, args.y) && packs_fit(args.gamma, args.beta);
  const std::int64_t packs = packed ? shape.width / lanes : shape.width;
  const int threads = team_threads(space, threads_for(packs, packed ? max_held : 1, max_threads));
  const std::int64_t held = (packs + threads - 1) / threads;
  if (!packed) {
    held == 1 ? row_norm_forward_held<1, 1, false>(space, label, shape, args, threads)
              : row_norm_forward_held<1, 1, true>(space, label, shape, args, threads);
  } else if (held == 1) {
    row_norm_forward_held<lanes, 1, false>(space, label, shape, args, threads);
  } else if (held == 2) {
    row_norm_forward_held<lanes, 2, false>(space, label, shape, args, threads);
  } else if (held == 3) {
    row_norm_forward_held<lanes, 3, false>(space, label, shape, args, threads);
  } else if (held == max_held) {
    row_norm_forward_held<lanes, max_held, false>(space, label, shape, args, threads);
  } else {
    row_norm_forward_held<lanes, max_held, true>(space, label, shape, args, threads);
  }
}

template <int lanes, bool more, class Space, class T>
void row_norm_backward_held(const Space& space, const std::string& label, const RowNormShape& shape,
                            const RowNormBackward<T>& args, int threads, std::int64_t rows,
                            std::int64_t teams) {
  const float scale = 1 / static_cast<float>(shape.width);
  args.dresidual != nullptr
      ? for_each_team(space, label, teams, threads,
                      BackwardByTeam<T, lanes, more, true>{shape, args, rows, scale})
      : for_each_team(space, label, teams, threads,
                      BackwardByTeam<T, lanes, more, false>{shape, args, rows, scale});
}

/// Enqueues the backward pass and returns the number of teams.
template <int lanes, class Space, class T>
std::int64_t row_norm_backward_in_packs(const Space& space, const std::string& label,
                                        const RowNormShape& shape, const RowNormBackward<T>& args) {
  const int wanted = backward_team<lanes>(shape), threads = team_threads(space, wanted);
  const std::int64_t rows = rows_per_team(shape, wanted), teams = (shape.rows + rows - 1) / rows;
  shape.width / lanes > threads
      ? row_norm_backward_held<lanes, true>(space, label, shape, args, threads, rows, teams)
      : row_norm_backward_held<lanes, false>(space, label, shape, args, threads, rows, teams);
  return teams;
}

template <class Space, class T>
void row_norm_backward_by_teams(const Space& space, const std::string& label,
                                const std::string& parameter_label, const RowNormShape& shape,
                                const RowNormBackward<T>& args) {
  const bool packs = row_packs_fit<T>(shape) &&
                     packs_fit(args.x, args.dy, args.dresidual, args.dx) &&
                     packs_fit(args.gamma, args.partials);
  const std::int64_t teams =
      packs ? row_norm_backward_in_packs<pack_lanes<T>>(space, label, shape, args)
            : row_norm_backward_in_packs<1>(space, label, shape, args);
  using Parameters = ParametersByTeam<Space>;
  const Parameters parameters{teams,       shape.width, args.partials,
                              args.dgamma, args.dbeta,  args.add_parameters};
  Kokkos::TeamPolicy<Space> policy(
      space, static_cast<int>(parameters.blocks() * (args.dbeta != nullptr ? 2 : 1)),
      team_threads(space, Parameters::columns * Parameters::slots));
  enqueue(parameter_label,
          policy.set_scratch_size(0, Kokkos::PerTeam(int{Parameters::scratch_bytes})), parameters);
}

}  // namespace trireme::kernels
