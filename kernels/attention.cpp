// SPDX-License-Identifier: Apache-2.0
//
// Attention in tiles (Dao et al. 2022, algorithm 1), forward and backward, in float32
// arithmetic. Called by src/ops/cuda/attention.cpp if cuDNN has no graph for the shape; the CPU has
// its own code (src/ops/cpu/attention/attention_forward.cpp).
// Forward: a team owns a tile of queries and loops over the tiles of keys that they see, with the
// running maximum and sum of each row:
//
//   load K | S = Q K^T | load V, P = softmax(S) | O = O * factor + P V | next tile of keys
//   after the last tile: out = O / sum, log_sum = maximum + log(sum)
//
// Backward has two passes, so that no sum needs an order among teams:
//
//   Delta            row sums of out * dout
//   BackwardQueries  a team owns queries:  P from log_sum | dS | dQ += dS K
//   BackwardKeys     a team owns keys:     P from log_sum | dS | dV += P^T dO | dK += dS^T Q
//
//   This costs seven products of tiles; a form with atomic sums between teams costs five.
//
// Memory traffic: q, k and v are read once per tile of the other side; results are written once.
// Letters: a the shape, t the tensors, q a query position, k a key position.

#include "trireme/kernels/attention.hpp"

#include "attention_tiles.hpp"
#include "kernels/space/row_group.hpp"

namespace trireme::kernels {
namespace {

const std::string forward_label = "trireme/kernels/attention_forward";
const std::string delta_label = "trireme/kernels/attention_delta";
const std::string queries_label = "trireme/kernels/attention_backward_queries";
const std::string keys_label = "trireme/kernels/attention_backward_keys";

/// Returns the number of tiles of queries. In backward it is also that of keys.
KOKKOS_INLINE_FUNCTION std::int64_t tiles(const AttentionShape& a, int rows) {
  return (queries(a) + rows - 1) / rows;
}

/// A thread's part of a tile of scores: one row in steps of row_step(), and a range of neighboring
/// keys, which share random words of dropout.
struct RowShare {
  int row, part, parts, begin, end;
  template <class Member>
  KOKKOS_FUNCTION RowShare(const Member& team, int rows, int columns) {
    parts = team.team_size() >= rows ? team.team_size() / rows : 1;
    row = team.team_rank() / parts;
    part = team.team_rank() - row * parts;
    const int each = (columns + parts - 1) / parts;
    begin = part * each < columns ? part * each : columns;
    end = begin + each < columns ? begin + each : columns;
  }
  template <class Member>
  KOKKOS_FUNCTION int row_step(const Member& team) const {
    return team.team_size() / parts;
  }
};

/// Forward pass of one tile of queries.
template <class T>
struct Forward {
  AttentionShape a;
  AttentionForward<T> t;
  TileSizes sizes;
  std::size_t scratch;

  static std::size_t bytes(const AttentionShape& a, TileSizes s) {
    const int width = static_cast<int>(a.head_width), parts = attention_threads / s.own;
    return 2 * ScratchTile::bytes(s.own, width) + ScratchTile::bytes(s.other, width) +
           ScratchTile::bytes(s.own, s.other) +
           static_cast<std::size_t>(s.own * (3 + 2 * parts)) * sizeof(float);
  }

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    // The last tiles have the most keys, so they start first.
    const std::int64_t heads = a.batch * a.heads,
                       tile = tiles(a, sizes.own) - 1 - team.league_rank() / heads;
    const std::int64_t sequence = team.league_rank() % heads / a.heads,
                       head = team.league_rank() % a.heads, kv_head = head / (a.heads / a.kv_heads);
    const std::int64_t first = a.first_query + tile * sizes.own;
    const int width = static_cast<int>(a.head_width), rows = sizes.own, columns = sizes.other,
              parts = team.team_size() >= rows ? team.team_size() / rows : 1;
    ScratchAllocator scratch_allocator(
        static_cast<float*>(team.team_scratch(scratch_level<typename Member::execution_space>())
                                .get_shmem(static_cast<int>(scratch))));
    const ScratchTile q = scratch_allocator.allocate(rows, width),
                      sums = scratch_allocator.allocate(rows, width),
                      other = scratch_allocator.allocate(columns, width),
                      scores = scratch_allocator.allocate(rows, columns);
    float *const maximum = scratch_allocator.allocate_floats(rows),
                 *const sum = scratch_allocator.allocate_floats(rows),
                 *const factor = scratch_allocator.allocate_floats(rows);
    float *const part_maximum = scratch_allocator.allocate_floats(rows * parts),
                 *const part_sum = scratch_allocator.allocate_floats(rows * parts);

    load_tile(team, query_rows(a, t.qkv, qkv_width(a), head * width, sequence, first, rows), q,
              rows);
    fill_tile(team, sums, rows, width, 0.0f);
    for (int r = team.team_rank(); r < rows; r += team.team_size()) {
      maximum[r] = -INFINITY;
      sum[r] = 0;
    }
    for (std::int64_t begin = 0, end = key_end(a, first + rows); begin < end; begin += columns) {
      team.team_barrier();
      load_tile(team, key_rows(k_column(a, kv_head), sequence, begin, columns), other, columns);
      team.team_barrier();
      multiply(team, rows, columns, width, as_stored(q), transposed(other), scores, Overwrite{});
      team.team_barrier();
      load_tile(team, key_rows(v_column(a, kv_head), sequence, begin, columns), other, columns);
      softmax(team, sequence, head, first, begin, scores, maximum, sum, factor, part_maximum,
              part_sum);
      multiply(team, rows, width, columns, as_stored(scores), as_stored(other), sums,
               ScaleAndAccumulate{factor});
    }
    team.team_barrier();
    store_tile(team, sums, query_rows(a, t.out, out_width(a), head * width, sequence, first, rows),
               [=](int row) { return 1.0f / sum[row]; });
    for (int r = team.team_rank(); r < rows && first + r < a.context; r += team.team_size()) {
      t.log_sum[(sequence * a.heads + head) * queries(a) + first - a.first_query + r] =
          maximum[r] + logf(sum[r]);
    }
  }

  /// Returns rows of keys or values; `column` is that of qkv.
  KOKKOS_FUNCTION HeadRows<const T> key_rows(std::int64_t column, std::int64_t sequence,
                                             std::int64_t first, int most) const {
    if (t.keys_values == nullptr)
      return head_rows(a, t.qkv, qkv_width(a), column, sequence, first, most);
    return head_rows(a, t.keys_values, qkv_width(a) - out_width(a), column - out_width(a), sequence,
                     first, most);
  }

  /// Turns scores into exp(score - new maximum), with dropout applied. Updates maximum and sum;
  /// factor = exp(old maximum - new maximum), which rescales the earlier sums.
  template <class Member>
  KOKKOS_FUNCTION void softmax(const Member& team, std::int64_t sequence, std::int64_t head,
                               std::int64_t first, std::int64_t begin, const ScratchTile& scores,
                               float* maximum, float* sum, float* factor, float* part_maximum,
                               float* part_sum) const {
    const RowShare share(team, sizes.own, sizes.other);
    const float scale = score_scale(a);
    for (int row = share.row; row < sizes.own; row += share.row_step(team)) {
      const std::int64_t end = key_end(a, first + row + 1) - begin;
      float largest = -INFINITY;
      for (int k = share.begin; k < share.end; ++k) {
        float& score = scores.data[row * scores.stride + k];
        score = k < end ? score * scale : -INFINITY;
        largest = score > largest ? score : largest;
      }
      part_maximum[row * share.parts + share.part] = largest;
    }
    team.team_barrier();
    for (int row = share.row; row < sizes.own; row += share.row_step(team)) {
      float largest = maximum[row];
      for (int p = 0; p < share.parts; ++p)
        largest = part_maximum[row * share.parts + p] > largest
                      ? part_maximum[row * share.parts + p]
                      : largest;
      DropoutFactor dropout_factor(a, sequence, head, first + row);
      float total = 0;
      for (int k = share.begin; k < share.end; ++k) {
        float& score = scores.data[row * scores.stride + k];
        const float exponential = fast_exp(score - largest);
        total += exponential;
        score = exponential * dropout_factor(begin + k);
      }
      part_sum[row * share.parts + share.part] = total;
    }
    team.team_barrier();
    for (int row = team.team_rank(); row < sizes.own; row += team.team_size()) {
      float largest = maximum[row], total = 0;
      for (int p = 0; p < share.parts; ++p) {
        largest = part_maximum[row * share.parts + p] > largest
                      ? part_maximum[row * share.parts + p]
                      : largest;
        total += part_sum[row * share.parts + p];
      }
      factor[row] = fast_exp(maximum[row] - largest);
      sum[row] = sum[row] * factor[row] + total;
      maximum[row] = largest;
    }
    team.team_barrier();
  }
};

/// Scores of some queries and keys in a backward pass, with log_sum and delta of the queries.
struct ScoreTile {
  std::int64_t sequence, head, first_query, first_key;
  int queries, keys;
  ScratchTile scores, gradients;
  float *log_sum, *delta;
};

/// Loads log_sum and delta of a tile's queries. Queries beyond the sequence get zeros; their dout
/// is zero, so they add nothing.
template <class Member, class T>
KOKKOS_INLINE_FUNCTION void load_numbers(const Member& team, const AttentionShape& a,
                                         const AttentionBackward<T>& t, const ScoreTile& s) {
  const std::int64_t row = (s.sequence * a.heads + s.head) * a.context + s.first_query;
  for (int r = team.team_rank(); r < s.queries; r += team.team_size()) {
    const bool inside = s.first_query + r < a.context;
    s.log_sum[r] = inside ? t.log_sum[row + r] : 0.0f;
    s.delta[r] = inside ? t.delta[row + r] : 0.0f;
  }
}

/// scores = probabilities with dropout applied; gradients = gradients of the scores, computed from
/// those of the dropped-out probabilities.
template <class Member>
KOKKOS_INLINE_FUNCTION void softmax_gradient(const Member& team, const AttentionShape& a,
                                             const ScoreTile& s) {
  const RowShare share(team, s.queries, s.keys);
  const float scale = score_scale(a);
  for (int row = share.row; row < s.queries; row += share.row_step(team)) {
    DropoutFactor dropout_factor(a, s.sequence, s.head, s.first_query + row);
    const std::int64_t end = key_end(a, s.first_query + row + 1) - s.first_key;
    for (int k = share.begin; k < share.end; ++k) {
      float &score = s.scores.data[row * s.scores.stride + k],
            &gradient = s.gradients.data[row * s.gradients.stride + k];
      /// delta [batch, heads, context] = the row sums of out * dout.
      const float probability = k < end ? fast_exp(score * scale - s.log_sum[row]) : 0.0f,
                  kept = dropout_factor(s.first_key + k);
      score = probability * kept;
      gradient = probability * (gradient * kept - s.delta[row]);
    }
  }
}

template <class T>
struct Delta {
  AttentionShape a;
  AttentionBackward<T> t;
  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    const T *out = t.out + index * a.head_width, *dout = t.dout + index * a.head_width;
    const Sums<1> sum = group.sum(
        a.head_width, [=](std::int64_t i) { return to_float(out[i]) * to_float(dout[i]); });
    const std::int64_t row = index / a.heads, head = index % a.heads;
    if (group.is_leader())
      t.delta[(row / a.context * a.heads + head) * a.context + row % a.context] =
          static_cast<float>(sum.value[0]);
  }
};

template <class T>
struct BackwardQueries {
  AttentionShape a;
  AttentionBackward<T> t;
  TileSizes sizes;
  std::size_t scratch;

  static std::size_t bytes(const AttentionShape& a, TileSizes s) {
    const int width = static_cast<int>(a.head_width);
    return 3 * ScratchTile::bytes(s.own, width) + 2 * ScratchTile::bytes(s.other, width) +
           2 * ScratchTile::bytes(s.own, s.other) +
           static_cast<std::size_t>(2 * s.own) * sizeof(float);
  }

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const std::int64_t heads = a.batch * a.heads,
                       tile = tiles(a, sizes.own) - 1 - team.league_rank() / heads;
    const std::int64_t sequence = team.league_rank() % heads / a.heads,
                       head = team.league_rank() % a.heads, kv_head = head / (a.heads / a.kv_heads);
    const std::int64_t first = tile * sizes.own;
    const int width = static_cast<int>(a.head_width), rows = sizes.own, columns = sizes.other;
    ScratchAllocator scratch_allocator(
        static_cast<float*>(team.team_scratch(scratch_level<typename Member::execution_space>())
                                .get_shmem(static_cast<int>(scratch))));
    const ScratchTile q = scratch_allocator.allocate(rows, width),
                      dout = scratch_allocator.allocate(rows, width),
                      dq = scratch_allocator.allocate(rows, width),
                      k = scratch_allocator.allocate(columns, width),
                      v = scratch_allocator.allocate(columns, width);
    ScoreTile s{sequence,
                head,
                first,
                0,
                rows,
                columns,
                scratch_allocator.allocate(rows, columns),
                scratch_allocator.allocate(rows, columns),
                scratch_allocator.allocate_floats(rows),
                scratch_allocator.allocate_floats(rows)};

    load_tile(team, head_rows(a, t.qkv, qkv_width(a), head * width, sequence, first, rows), q,
              rows);
    load_tile(team, head_rows(a, t.dout, out_width(a), head * width, sequence, first, rows), dout,
              rows);
    load_numbers(team, a, t, s);
    fill_tile(team, dq, rows, width, 0.0f);
    for (const std::int64_t end = key_end(a, first + rows); s.first_key < end;
         s.first_key += columns) {
      team.team_barrier();
      load_tile(
          team,
          head_rows(a, t.qkv, qkv_width(a), k_column(a, kv_head), sequence, s.first_key, columns),
          k, columns);
      load_tile(
          team,
          head_rows(a, t.qkv, qkv_width(a), v_column(a, kv_head), sequence, s.first_key, columns),
          v, columns);
      team.team_barrier();
      multiply(team, rows, columns, width, as_stored(q), transposed(k), s.scores, Overwrite{});
      multiply(team, rows, columns, width, as_stored(dout), transposed(v), s.gradients,
               Overwrite{});
      team.team_barrier();
      softmax_gradient(team, a, s);
      team.team_barrier();
      multiply(team, rows, width, columns, as_stored(s.gradients), as_stored(k), dq, Accumulate{});
    }
    team.team_barrier();
    const float scale = score_scale(a);
    store_tile(team, dq, head_rows(a, t.dqkv, qkv_width(a), head * width, sequence, first, rows),
               [=](int) { return scale; });
  }
};

template <class T>
struct BackwardKeys {
  AttentionShape a;
  AttentionBackward<T> t;
  TileSizes sizes;
  std::size_t scratch;

  static std::size_t bytes(const AttentionShape& a, TileSizes s) {
    const int width = static_cast<int>(a.head_width);
    return 4 * ScratchTile::bytes(s.own, width) + 2 * ScratchTile::bytes(s.other, width) +
           2 * ScratchTile::bytes(s.other, s.own) +
           static_cast<std::size_t>(2 * s.other) * sizeof(float);
  }

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    // The first tiles have the most queries, so they start first.
    const std::int64_t heads = a.batch * a.kv_heads, tile = team.league_rank() / heads,
                       group = a.heads / a.kv_heads;
    const std::int64_t sequence = team.league_rank() % heads / a.kv_heads,
                       kv_head = team.league_rank() % a.kv_heads, first = tile * sizes.own;
    const int width = static_cast<int>(a.head_width), keys = sizes.own, queries = sizes.other;
    ScratchAllocator scratch_allocator(
        static_cast<float*>(team.team_scratch(scratch_level<typename Member::execution_space>())
                                .get_shmem(static_cast<int>(scratch))));
    const ScratchTile k = scratch_allocator.allocate(keys, width),
                      v = scratch_allocator.allocate(keys, width),
                      dk = scratch_allocator.allocate(keys, width),
                      dv = scratch_allocator.allocate(keys, width);
    const ScratchTile q = scratch_allocator.allocate(queries, width),
                      dout = scratch_allocator.allocate(queries, width);
    ScoreTile s{sequence,
                0,
                0,
                first,
                queries,
                keys,
                scratch_allocator.allocate(queries, keys),
                scratch_allocator.allocate(queries, keys),
                scratch_allocator.allocate_floats(queries),
                scratch_allocator.allocate_floats(queries)};

    load_tile(team, head_rows(a, t.qkv, qkv_width(a), k_column(a, kv_head), sequence, first, keys),
              k, keys);
    load_tile(team, head_rows(a, t.qkv, qkv_width(a), v_column(a, kv_head), sequence, first, keys),
              v, keys);
    // The first tile of queries that see the keys.
    const std::int64_t first_seeing =
        a.mask == AttentionMask::causal ? first / queries * queries : 0;
    fill_tile(team, dk, keys, width, 0.0f);
    fill_tile(team, dv, keys, width, 0.0f);
    for (s.head = kv_head * group; s.head < (kv_head + 1) * group; ++s.head) {
      for (s.first_query = first_seeing; s.first_query < a.context; s.first_query += queries) {
        team.team_barrier();
        load_tile(
            team,
            head_rows(a, t.qkv, qkv_width(a), s.head * width, sequence, s.first_query, queries), q,
            queries);
        load_tile(
            team,
            head_rows(a, t.dout, out_width(a), s.head * width, sequence, s.first_query, queries),
            dout, queries);
        load_numbers(team, a, t, s);
        team.team_barrier();
        multiply(team, queries, keys, width, as_stored(q), transposed(k), s.scores, Overwrite{});
        multiply(team, queries, keys, width, as_stored(dout), transposed(v), s.gradients,
                 Overwrite{});
        team.team_barrier();
        softmax_gradient(team, a, s);
        team.team_barrier();
        multiply(team, keys, width, queries, transposed(s.scores), as_stored(dout), dv,
                 Accumulate{});
        multiply(team, keys, width, queries, transposed(s.gradients), as_stored(q), dk,
                 Accumulate{});
      }
    }
    team.team_barrier();
    const float scale = score_scale(a);
    store_tile(team, dk,
               head_rows(a, t.dqkv, qkv_width(a), k_column(a, kv_head), sequence, first, keys),
               [=](int) { return scale; });
    store_tile(team, dv,
               head_rows(a, t.dqkv, qkv_width(a), v_column(a, kv_head), sequence, first, keys),
               [=](int) { return 1.0f; });
  }
};

/// Enqueues one pass: teams for all tiles of `heads` heads, with the largest tiles that fit.
template <class Pass, class Space, class Arguments>
void run_pass(const Space& space, const std::string& label, const AttentionShape& a,
              const Arguments& t, std::int64_t heads) {
  const TileSizes sizes = tile_sizes([&](TileSizes s) { return Pass::bytes(a, s); });
  const std::size_t scratch = Pass::bytes(a, sizes);
  for_each_team(space, label, heads * tiles(a, sizes.own), scratch, Pass{a, t, sizes, scratch});
}

}  // namespace

template <class T>
void attention_forward(const Stream& stream, const AttentionShape& a,
                       const AttentionForward<T>& t) {
  dispatch(stream, [=](const auto& space) {
    run_pass<Forward<T>>(space, forward_label, a, t, a.batch * a.heads);
  });
}
template void attention_forward(const Stream&, const AttentionShape&,
                                const AttentionForward<float>&);
template void attention_forward(const Stream&, const AttentionShape&,
                                const AttentionForward<BFloat16>&);
template void attention_forward(const Stream&, const AttentionShape&,
                                const AttentionForward<Float16>&);

template <class T>
void attention_backward(const Stream& stream, const AttentionShape& a,
                        const AttentionBackward<T>& t) {
  dispatch(stream, [=](const auto& space) {
    for_each_group(space, delta_label, a.batch * a.context * a.heads, Delta<T>{a, t});
    run_pass<BackwardQueries<T>>(space, queries_label, a, t, a.batch * a.heads);
    run_pass<BackwardKeys<T>>(space, keys_label, a, t, a.batch * a.kv_heads);
  });
}
template void attention_backward(const Stream&, const AttentionShape&,
                                 const AttentionBackward<float>&);
template void attention_backward(const Stream&, const AttentionShape&,
                                 const AttentionBackward<BFloat16>&);
template void attention_backward(const Stream&, const AttentionShape&,
                                 const AttentionBackward<Float16>&);

}  // namespace trireme::kernels
