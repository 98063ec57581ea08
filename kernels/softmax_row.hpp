// SPDX-License-Identifier: Apache-2.0
#pragma once

// Softmax of one row by a device team, in two passes that each read the row once:
//
//   pass 1   softmax_of_row    maximum, sum of exponentials, sum of logits
//   pass 2   gradient_of_row   gradient, and the rank of the label
//
// Pass 1 is online (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"): when
// the maximum grows, the sum of exponentials is rescaled.

#include <cfloat>

#include "kernels/space/pack_walk.hpp"
#include "kernels/space/vector_math.hpp"

namespace trireme::kernels {

/// Logits per pack: 16 bytes of them. The gradient is then also stored in words of 8 bytes or more.
template <class T>
constexpr int logit_lanes = pack_lanes<T>;

/// Returns the threads per row: few enough that many rows run at once, and some packs for each
/// thread.
template <class T>
int softmax_team(std::int64_t classes) {
  return threads_for(classes, 4 * logit_lanes<T>, 512);
}

/// One thread's step of pass 1. When the maximum grows, the sum of exponentials is multiplied by
/// exp(old maximum - new maximum).
template <class T>
struct SoftmaxStatisticsStep {
  const T* x;
  // Finite, so that a logit of minus infinity has an exponential of 0 even if it comes first.
  float largest = -FLT_MAX;
  float exponentials = 0, logits = 0;

  template <int lanes>
  struct Operands {
    float x[lanes];
  };
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void load(int i, Operands<lanes>& o) const {
    kernels::load<lanes>(x + i, o.x);
  }
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void process(int, const Operands<lanes>& o) {
    float most = o.x[0];
    for (int k = 1; k < lanes; ++k) most = fmaxf(most, o.x[k]);
    if (most > largest) {
      exponentials *= fast_exp(largest - most);
      largest = most;
    }
    float sum = 0, plain = 0;
    for (int k = 0; k < lanes; ++k) {
      sum += fast_exp(o.x[k] - largest);
      plain += o.x[k];
    }
    exponentials += sum;
    logits += plain;
  }
};

/// The same step, which also keeps the logits: kept[i] = x[i].
template <class T>
struct SoftmaxKeepingStep : SoftmaxStatisticsStep<T> {
  T* kept;

  template <int lanes>
  using Operands = typename SoftmaxStatisticsStep<T>::template Operands<lanes>;
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void process(int i, const Operands<lanes>& o) {
    store<lanes>(o.x, kept + i);
    SoftmaxStatisticsStep<T>::template process<lanes>(i, o);
  }
};

/// Results of pass 1.
struct SoftmaxOfRow {
  float largest;
  double exponentials, logits;
};

/// Runs pass 1 over a row by copies of `step`; all threads return the results. `head`: see process
/// order in walk_packs().
template <int lanes, class Step, class Group>
KOKKOS_FUNCTION SoftmaxOfRow softmax_of_row(const Group& group, Step step, int head, int classes) {
  walk_packs<lanes, 4>(group, head, classes, step);
  const float largest = group.largest_of(step.largest);
  Sums<2> sums;
  sums.value[0] = step.exponentials * fast_exp(step.largest - largest);
  sums.value[1] = step.logits;
  group.add_up(sums);
  return {largest, sums.value[0], sums.value[1]};
}

/// Inputs of pass 2.
struct SoftmaxRow {
  int classes,
      /// -1 or `classes` if the label belongs to another part, before or after this one
      label;
  float label_logit, largest;
  /// label_target: target of the label, less `even`, each class's share of the label smoothing
  double exponentials, scale, label_target, even;

  /// Returns the gradient at the label.
  KOKKOS_FUNCTION float at_label() const {
    const double probability = exp(static_cast<double>(label_logit) - largest) / exponentials;
    return static_cast<float>(scale * (probability - label_target - even));
  }
};

/// One thread's step of pass 2: dx = the gradient as if there were no label, unless dx is null;
/// `before` += the classes before the label.
/// A class ranks before the label if its logit is greater, or equal at a lower index. The
/// comparisons are negated, so that a NaN on either side counts as "before".
template <class T, class G>
struct SoftmaxGradientStep {
  const T* x;
  G* dx;
  int label;
  float label_logit, largest, inverse, level;
  std::int32_t before = 0;

  template <int lanes>
  struct Operands {
    float x[lanes];
  };
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void load(int i, Operands<lanes>& o) const {
    kernels::load<lanes>(x + i, o.x);
  }
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void process(int i, const Operands<lanes>& o) {
    for (int k = 0; k < lanes; ++k)
      before += i + k < label ? !(o.x[k] < label_logit) : !(o.x[k] <= label_logit);
    if (dx == nullptr) return;
    float value[lanes];
    for (int k = 0; k < lanes; ++k) value[k] = fast_exp(o.x[k] - largest) * inverse - level;
    store<lanes>(value, dx + i);
  }
};

/// Runs pass 2 over a row: dx = gradient, unless dx is null. All threads return the number of these
/// classes before the label.
template <class T, class G, class Group>
KOKKOS_FUNCTION std::int32_t gradient_of_row(const Group& group, const T* x, G* dx, int head,
                                             const SoftmaxRow& row) {
  const float inverse = static_cast<float>(row.scale / row.exponentials),
              level = static_cast<float>(row.even * row.scale);
  SoftmaxGradientStep<T, G> step{x, dx, row.label, row.label_logit, row.largest, inverse, level};
  walk_packs<logit_lanes<T>, 4>(group, head, row.classes, step);
  // The reduction is also a barrier: all threads have written their gradients.
  const std::int32_t before = group.sum_of(step.before);
  if (dx != nullptr && group.is_leader() && 0 <= row.label && row.label < row.classes)
    dx[row.label] = from_float<G>(row.at_label());
  return before;
}

/// dx = value for a row without a gradient (missing or invalid label).
template <class G, class Group>
KOKKOS_FUNCTION void fill_row(const Group& group, G* dx, std::int64_t classes, float value) {
  for (std::int64_t i = group.first(); dx != nullptr && i < classes; i += group.step())
    dx[i] = from_float<G>(value);
}

}  // namespace trireme::kernels
