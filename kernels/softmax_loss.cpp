// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy whose classes may be split over ranks (parts) and whose rows come in tiles.
// Called by src/ops/softmax_loss.cpp in this order:
//
//   softmax_statistics   each part: maximum, sums and label logit of every row
//   merge_statistics     statistics of all parts, after their exchange
//   softmax_gradient     each part: gradient and ranks
//   softmax_sums         losses and counts over the rows of a tile
//
// Without parts, fused_softmax() replaces softmax_statistics and softmax_gradient: it overwrites
// the logits of a row by their gradient.
//
// Order of the sums: on the host lanes and blocks of a fixed size, so tiles do not change a row's
// bits. On a device they do not if tiles begin at the same offset from a pack boundary. Rows are
// added in ascending order on the host, in blocks on a device. The number of threads never matters.
// Memory traffic: the host reads the logits twice for the statistics (once from cache), a device
// once; the gradient reads and writes once. fused_softmax() reads and writes once: a device keeps
// the row in the shared memory of a block, the host in its cache.

#include "trireme/kernels/softmax_loss.hpp"

#include "kernels/space/block_group.hpp"
#include "softmax_row.hpp"

namespace trireme::kernels {
namespace {

const std::string statistics_label = "trireme/kernels/softmax_statistics";
const std::string merge_label = "trireme/kernels/softmax_merge_statistics";
const std::string gradient_label = "trireme/kernels/softmax_gradient";
const std::string fused_label = "trireme/kernels/softmax_fused";
const std::string sums_label = "trireme/kernels/softmax_sums";
const std::string parts_label = "trireme/kernels/softmax_sums_of_blocks";

/// Returns the logit of the row's label; 0 if another part holds it, or if there is none.
template <class T>
KOKKOS_INLINE_FUNCTION float label_logit(const SoftmaxStatistics<T>& args, std::int64_t row) {
  const std::int64_t label = args.labels[row] - args.first;
  return args.labels[row] >= 0 && label >= 0 && label < args.classes
             ? to_float(args.logits[row * args.classes + label])
             : 0.0f;
}

template <class T>
struct StatisticsOfRow {
  SoftmaxStatistics<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row, const HostGroup& group) const {
    const T* x = args.logits + row * args.classes;
    const float largest =
        group.largest(args.classes, [=](std::int64_t i) { return to_float(x[i]); });
    const Sums<2> sums = group.sum(
        args.classes, [=](std::int64_t i) { return fast_exp(to_float(x[i]) - largest); },
        [=](std::int64_t i) { return to_float(x[i]); });
    args.statistics[row] = {largest, static_cast<float>(sums.value[0]),
                            static_cast<float>(sums.value[1]), label_logit(args, row)};
  }
};

template <class T>
struct StatisticsByTeam {
  SoftmaxStatistics<T> args;
  /// the logits are aligned to packs
  bool packs;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const int classes = static_cast<int>(args.classes),
              head = packs ? unaligned_head<logit_lanes<T>>(row * classes, classes) : classes;
    const SoftmaxOfRow softmax = softmax_of_row<logit_lanes<T>>(
        group, SoftmaxStatisticsStep<T>{args.logits + row * args.classes}, head, classes);
    if (group.is_leader())
      args.statistics[row] = {softmax.largest, static_cast<float>(softmax.exponentials),
                              static_cast<float>(softmax.logits), label_logit(args, row)};
  }
};

struct MergeOfRow {
  MergeStatistics args;

  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    float largest = args.statistics[row].largest;
    for (std::int64_t part = 1; part < args.parts; ++part) {
      const float other = args.statistics[part * args.rows + row].largest;
      largest = other > largest ? other : largest;
    }
    double exponentials = 0, logits = 0;
    // One part holds the label's logit; all others contribute 0.
    float label_logit = 0;
    for (std::int64_t part = 0; part < args.parts; ++part) {
      const RowStatistics& s = args.statistics[part * args.rows + row];
      exponentials += s.exponentials * exp(static_cast<double>(s.largest) - largest);
      logits += s.logits;
      label_logit += s.label_logit;
    }
    args.merged[row] = {largest, static_cast<float>(exponentials), static_cast<float>(logits),
                        label_logit};
  }
};

template <class T, class G>
struct GradientOfRow {
  SoftmaxGradient<T, G> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row, const HostGroup& group) const {
    const std::int64_t classes = args.classes, label = args.labels[row] - args.first;
    const T* x = args.logits + row * classes;
    G* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * classes;
    // Label -1: the row is missing. A label >= total_classes is invalid; the loss becomes NaN too.
    if (args.labels[row] < 0 || args.labels[row] >= args.total_classes) {
      const G value = from_float<G>(args.labels[row] < 0 ? 0.0f : not_a_number);
      for (std::int64_t i = 0; dx != nullptr && i < classes; ++i) dx[i] = value;
      return;
    }
    const RowStatistics s = args.merged[row];
    args.ranks[row] += classes_before(group, x, label, s.label_logit);
    if (dx == nullptr) return;
    const double smoothing = args.label_smoothing,
                 even = smoothing / static_cast<double>(args.total_classes),
                 scale = args.gradient_scale;
    const float inverse = static_cast<float>(scale / s.exponentials),
                level = static_cast<float>(even * scale), largest = s.largest;
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i)
      dx[i] = from_float<G>(fast_exp(to_float(x[i]) - largest) * inverse - level);
    if (label < 0 || label >= classes) return;
    const double probability = exp(static_cast<double>(s.label_logit) - s.largest) / s.exponentials;
    dx[label] = from_float<G>(static_cast<float>(scale * (probability - (1 - smoothing) - even)));
  }

  /// Returns the number of classes that rank before the label: a greater logit, or an equal one at
  /// a lower index. The comparisons are negated, so that a NaN on either side counts as "before".
  /// If another part holds the label, its index is below or above all indices of this part.
  KOKKOS_FUNCTION std::int32_t classes_before(const HostGroup& group, const T* x,
                                              std::int64_t label, float label_logit) const {
    const std::int64_t lower = label < 0 ? 0 : label < args.classes ? label : args.classes;
    return group.count(0, lower, [=](std::int64_t i) { return !(to_float(x[i]) < label_logit); }) +
           group.count(lower, args.classes,
                       [=](std::int64_t i) { return !(to_float(x[i]) <= label_logit); });
  }
};

/// Returns the inputs of pass 2 of a row whose label is valid.
template <class T, class G>
KOKKOS_INLINE_FUNCTION SoftmaxRow softmax_row(const SoftmaxGradient<T, G>& args, std::int64_t row,
                                              const RowStatistics& s) {
  const std::int64_t label = args.labels[row] - args.first;
  return {.classes = static_cast<int>(args.classes),
          .label = static_cast<int>(label < 0              ? -1
                                    : label < args.classes ? label
                                                           : args.classes),
          .label_logit = s.label_logit,
          .largest = s.largest,
          .exponentials = s.exponentials,
          .scale = args.gradient_scale,
          .label_target = 1 - static_cast<double>(args.label_smoothing),
          .even = args.label_smoothing / static_cast<double>(args.total_classes)};
}

template <class T, class G>
struct GradientByTeam {
  SoftmaxGradient<T, G> args;
  /// logits and gradient are aligned to packs
  bool packs;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const int classes = static_cast<int>(args.classes),
              head = packs ? unaligned_head<logit_lanes<T>>(row * classes, classes) : classes;
    G* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * args.classes;
    if (args.labels[row] < 0 || args.labels[row] >= args.total_classes)
      return fill_row(group, dx, classes, args.labels[row] < 0 ? 0.0f : not_a_number);
    const std::int32_t before = gradient_of_row(group, args.logits + row * args.classes, dx, head,
                                                softmax_row(args, row, args.merged[row]));
    if (group.is_leader()) args.ranks[row] += before;
  }
};

/// Returns the arguments of the statistics, or of the gradient, that the fused kernel computes.
template <class T>
KOKKOS_INLINE_FUNCTION SoftmaxStatistics<T> statistics_of(const FusedSoftmax<T>& args) {
  return {args.rows, args.classes, 0, args.logits, args.labels, args.statistics};
}
template <class T>
KOKKOS_INLINE_FUNCTION SoftmaxGradient<T, T> gradient_of(const FusedSoftmax<T>& args) {
  return {args.rows,
          args.classes,
          0,
          args.classes,
          args.label_smoothing,
          args.gradient_scale,
          args.logits,
          args.labels,
          args.statistics,
          args.overwrites ? args.logits : nullptr,
          args.ranks};
}

/// Host form: both passes over a row, which the cache holds in between.
template <class T>
struct FusedOfRow {
  FusedSoftmax<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row, const HostGroup& group) const {
    StatisticsOfRow<T>{statistics_of(args)}(row, group);
    GradientOfRow<T, T>{gradient_of(args)}(row, group);
  }
};

/// Device form: a block per row. Pass 1 copies the row to shared memory, pass 2 reads it there.
///
///   pass 1  read the row; memory := logits; maximum, sum, label's logit (two reductions)
///   pass 2  read memory; row := gradient; the label's rank (one reduction)
///   last    one thread corrects the gradient of the label
template <class T>
struct FusedByBlock {
  FusedSoftmax<T> args;
  /// the logits are aligned to packs
  bool packs;
  static constexpr int max_threads = 512;

  /// Returns the shared memory for a row: the logits at any offset from a pack boundary.
  static std::int64_t row_bytes(std::int64_t classes) {
    return (classes + 2 * logit_lanes<T> - 1) / logit_lanes<T> * pack_bytes;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group, void* memory) const {
    constexpr int lanes = logit_lanes<T>;
    const int classes = static_cast<int>(args.classes),
              head = packs ? unaligned_head<lanes>(row * classes, classes) : classes;
    T *const x = args.logits + row * args.classes,
             // as far from a pack boundary as x
        *const kept = static_cast<T*>(memory) + (lanes - head % lanes) % lanes;
    // Read by all threads before the first barrier, and overwritten behind it.
    const float of_label = label_logit(statistics_of(args), row);
    const SoftmaxOfRow softmax =
        softmax_of_row<lanes>(group, SoftmaxKeepingStep<T>{{x}, kept}, head, classes);
    const RowStatistics statistics{softmax.largest, static_cast<float>(softmax.exponentials),
                                   static_cast<float>(softmax.logits), of_label};
    if (group.is_leader()) args.statistics[row] = statistics;
    T* const dx = args.overwrites ? x : nullptr;
    if (args.labels[row] < 0 || args.labels[row] >= args.classes)
      return fill_row(group, dx, classes, args.labels[row] < 0 ? 0.0f : not_a_number);
    const std::int32_t before =
        gradient_of_row(group, kept, dx, head, softmax_row(gradient_of(args), row, statistics));
    if (group.is_leader()) args.ranks[row] += before;
  }
};

/// Returns `before` plus the sums over rows [begin, begin + count). Counts are integers, which are
/// exact in double.
template <class Group>
KOKKOS_FUNCTION Sums<4> sums_of_rows(const SoftmaxSums& args, const Group& group,
                                     const Sums<4>& before, std::int64_t begin,
                                     std::int64_t count) {
  const double smoothing = args.label_smoothing,
               total_classes = static_cast<double>(args.total_classes);
  const SoftmaxSums a = args;
  return group.add_in_double(before, count, [=](std::int64_t i, double* term) {
    const std::int64_t row = begin + i;
    // An invalid label makes the loss NaN.
    const bool counts = a.labels[row] >= 0, known = counts && a.labels[row] < a.total_classes;
    const RowStatistics& s = a.merged[row];
    // Without smoothing, an infinite logit must not become 0 * infinity = NaN.
    const double smoothed = smoothing > 0 ? smoothing * s.logits / total_classes : 0;
    const double log_sum = s.largest + log(static_cast<double>(s.exponentials));
    term[0] = !counts ? 0.0
              : known ? log_sum - (1 - smoothing) * s.label_logit - smoothed
                      : static_cast<double>(not_a_number);
    term[1] = counts;
    term[2] = known && a.ranks[row] < 1;
    term[3] = known && a.ranks[row] < 5;
  });
}

/// Returns the sums from which the addition starts: those of earlier tiles, or zeros.
KOKKOS_INLINE_FUNCTION Sums<4> sums_before(const SoftmaxSums& args) {
  Sums<4> before;
  for (int s = 0; s < 4 && args.add; ++s) before.value[s] = args.sums[s];
  return before;
}

/// Host: one thread adds all rows.
struct SumOfRows {
  SoftmaxSums args;

  KOKKOS_FUNCTION void operator()(std::int64_t, const HostGroup& group) const {
    const Sums<4> sums = sums_of_rows(args, group, sums_before(args), 0, args.rows);
    for (int s = 0; s < 4; ++s) args.sums[s] = sums.value[s];
  }
};

// One row per thread of a team.
constexpr std::int64_t block_rows = 256;

std::int64_t blocks_of(std::int64_t rows) { return (rows + block_rows - 1) / block_rows; }

struct SumOfBlock {
  SoftmaxSums args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t block, const Group& group) const {
    const std::int64_t begin = block * block_rows, left = args.rows - begin;
    const Sums<4> sums =
        sums_of_rows(args, group, Sums<4>(), begin, left < block_rows ? left : block_rows);
    if (!group.is_leader()) return;
    for (int s = 0; s < 4; ++s) args.block_sums[block * 4 + s] = sums.value[s];
  }
};

struct SumOfBlocks {
  SoftmaxSums args;
  std::int64_t blocks;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    const double* of_blocks = args.block_sums;
    const Sums<4> sums =
        group.add_in_double(sums_before(args), blocks, [=](std::int64_t block, double* term) {
          for (int s = 0; s < 4; ++s) term[s] = of_blocks[block * 4 + s];
        });
    if (!group.is_leader()) return;
    for (int s = 0; s < 4; ++s) args.sums[s] = sums.value[s];
  }
};

template <class Space, class T>
void run_statistics(const Space& space, const SoftmaxStatistics<T>& args) {
  if constexpr (on_host<Space>) {
    for_each_group(space, statistics_label, args.rows, StatisticsOfRow<T>{args});
  } else {
    for_each_team(space, statistics_label, args.rows, softmax_team<T>(args.classes),
                  StatisticsByTeam<T>{args, packs_fit(args.logits)});
  }
}

template <class Space, class T, class G>
void run_gradient(const Space& space, const SoftmaxGradient<T, G>& args) {
  if constexpr (on_host<Space>) {
    for_each_group(space, gradient_label, args.rows, GradientOfRow<T, G>{args});
  } else {
    for_each_team(space, gradient_label, args.rows, softmax_team<T>(args.classes),
                  GradientByTeam<T, G>{args, packs_fit(args.logits) && packs_fit(args.dlogits)});
  }
}

template <class Space, class T>
void run_fused(const Space& space, const FusedSoftmax<T>& args) {
  if constexpr (on_host<Space>) {
    for_each_group(space, fused_label, args.rows, FusedOfRow<T>{args});
  } else {
    using Row = FusedByBlock<T>;
    for_each_block<Row::max_threads>(space, fused_label, args.rows, softmax_team<T>(args.classes),
                                     Row::row_bytes(args.classes),
                                     Row{args, packs_fit(args.logits)});
  }
}

template <class Space>
void run_sums(const Space& space, const SoftmaxSums& args) {
  if constexpr (on_host<Space>) {
    for_each_group(space, sums_label, 1, SumOfRows{args});
  } else {
    for_each_team(space, parts_label, blocks_of(args.rows), block_rows, SumOfBlock{args});
    for_each_team(space, sums_label, 1, block_rows, SumOfBlocks{args, blocks_of(args.rows)});
  }
}

}  // namespace

template <class T>
void softmax_statistics(const Stream& stream, const SoftmaxStatistics<T>& args) {
  dispatch(stream, [=](const auto& space) { run_statistics(space, args); });
}
template void softmax_statistics(const Stream&, const SoftmaxStatistics<float>&);
template void softmax_statistics(const Stream&, const SoftmaxStatistics<BFloat16>&);
template void softmax_statistics(const Stream&, const SoftmaxStatistics<Float16>&);

void merge_statistics(const Stream& stream, const MergeStatistics& args) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, merge_label, args.rows, MergeOfRow{args});
  });
}

template <class T, class G>
void softmax_gradient(const Stream& stream, const SoftmaxGradient<T, G>& args) {
  dispatch(stream, [=](const auto& space) { run_gradient(space, args); });
}
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, float>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, BFloat16>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, Float16>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<BFloat16, BFloat16>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<Float16, Float16>&);

template <class T>
bool fused_softmax_fits(const Stream& stream, std::int64_t classes) {
  using Row = FusedByBlock<T>;
  return Row::row_bytes(classes) + block_group_bytes(Row::max_threads) <= max_block_bytes(stream);
}
template bool fused_softmax_fits<float>(const Stream&, std::int64_t);
template bool fused_softmax_fits<BFloat16>(const Stream&, std::int64_t);
template bool fused_softmax_fits<Float16>(const Stream&, std::int64_t);

template <class T>
void fused_softmax(const Stream& stream, const FusedSoftmax<T>& args) {
  dispatch(stream, [=](const auto& space) { run_fused(space, args); });
}
template void fused_softmax(const Stream&, const FusedSoftmax<float>&);
template void fused_softmax(const Stream&, const FusedSoftmax<BFloat16>&);
template void fused_softmax(const Stream&, const FusedSoftmax<Float16>&);

std::int64_t softmax_block_sum_count(std::int64_t rows) { return 4 * blocks_of(rows); }

void softmax_sums(const Stream& stream, const SoftmaxSums& args) {
  dispatch(stream, [=](const auto& space) { run_sums(space, args); });
}

}  // namespace trireme::kernels
