#pragma once

// A team's two passes over a row of logits, each of which reads it once: what the softmax needs of
// it, and its gradient with the label's rank.

#include <cfloat>

#include "pack_walk.hpp"
#include "vector_math.hpp"

namespace trireme::kernels {

/// Logits a pack: those of 16 bytes, where the gradient too is stored in whole words of 8 bytes or
/// more.
template <class T>
constexpr int logit_lanes = pack_lanes<T>;

/// Threads a row: enough rows at a time fill a device, and a thread has some packs of each.
template <class T>
int softmax_team(std::int64_t classes) {
  return threads_for(classes, 4 * logit_lanes<T>, 512);
}

/// The largest of what has come so far, and exponentials of differences to it: where it grows, what
/// was added up shrinks.
template <class T>
struct SoftmaxStatisticsStep {
  const T* x;
  float largest = -FLT_MAX;  // finite: a logit of minus infinity has an exponential of 0 also where
                             // none was greater so far
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

struct SoftmaxOfRow {
  float largest;
  double exponentials, logits;
};

/// `head`: as for walk_packs.
template <class T, class Group>
KOKKOS_FUNCTION SoftmaxOfRow softmax_of_row(const Group& group, const T* x, int head, int classes) {
  SoftmaxStatisticsStep<T> step{x};
  walk_packs<logit_lanes<T>, 4>(group, head, classes, step);
  const float largest = group.largest_of(step.largest);
  Sums<2> sums;
  sums.value[0] = step.exponentials * fast_exp(step.largest - largest);
  sums.value[1] = step.logits;
  group.add_up(sums);
  return {largest, sums.value[0], sums.value[1]};
}

/// What the gradient of a row is made with.
struct SoftmaxRow {
  int classes,
      label;  ///< label: -1 or `classes` where it is another part's, before or behind these
  float label_logit, largest;
  double exponentials, scale, smoothing, even;  ///< even: of smoothing, a class' share

  KOKKOS_FUNCTION float at_label() const {
    const double probability = exp(static_cast<double>(label_logit) - largest) / exponentials;
    return static_cast<float>(scale * (probability - (1 - smoothing) - even));
  }
};

/// dx = the gradient as if there were no label, where dx is not null; `before` += classes before
/// the label: those whose logit is greater, or equal at a lower number; written so that a NaN
/// anywhere puts the label behind.
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

/// dx = the gradient, where it is not null. Returns the label's rank among these classes.
template <class T, class G, class Group>
KOKKOS_FUNCTION std::int32_t gradient_of_row(const Group& group, const T* x, G* dx, int head,
                                             const SoftmaxRow& row) {
  const float inverse = static_cast<float>(row.scale / row.exponentials),
              level = static_cast<float>(row.even * row.scale);
  SoftmaxGradientStep<T, G> step{x, dx, row.label, row.label_logit, row.largest, inverse, level};
  walk_packs<logit_lanes<T>, 4>(group, head, row.classes, step);
  const std::int32_t before = group.sum_of(step.before);  // all threads have written
  if (dx != nullptr && group.is_leader() && 0 <= row.label && row.label < row.classes)
    dx[row.label] = from_float<G>(row.at_label());
  return before;
}

/// The gradient of a row that has none.
template <class G, class Group>
KOKKOS_FUNCTION void fill_row(const Group& group, G* dx, std::int64_t classes, float value) {
  for (std::int64_t i = group.first(); dx != nullptr && i < classes; i += group.step())
    dx[i] = from_float<G>(value);
}

}  // namespace trireme::kernels
