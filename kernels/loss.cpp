// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy over the rows of logits [rows, classes]. Called by src/ops/loss.cpp at the
// end of the forward pass; the gradient is computed in the same launch.
//
//   host, a thread per row:   maximum | sum of exp(x - maximum) | rank of the label | gradient
//   device, a team per row:   maximum and sum in one pass       | rank and gradient in one pass
//   then one group:           sums of losses, counts and ranks over all rows
//
// A row's target is one class, or two that share the weight 1 (mixup, cutmix). The class of the
// larger weight is ranked.
// Row results are stored in a workspace and added in a fixed order, so sums do not depend on the
// number of threads.
// Memory traffic: logits once (later passes hit the cache), dlogits once.

#include "trireme/kernels/loss.hpp"

#include <limits>

#include "softmax_row.hpp"

namespace trireme::kernels {
namespace {

const std::string row_label = "trireme/kernels/cross_entropy_rows";
const std::string sum_label = "trireme/kernels/cross_entropy_sums";

constexpr std::int32_t last_rank = std::numeric_limits<std::int32_t>::max();

/// The classes of a row's target before smoothing.
struct RowTarget {
  std::int64_t label,  // of the larger weight; -1: the row is missing
      second;          // -1: none
  double weight = 1;   // of the label; the second has the rest

  KOKKOS_FUNCTION bool is_valid(std::int64_t classes) const {
    return label >= 0 && label < classes && second < classes;
  }
};

/// Returns the target of a row. A missing partner leaves the row its own label.
template <class T>
KOKKOS_INLINE_FUNCTION RowTarget target_of(const CrossEntropy<T>& args, std::int64_t row) {
  const std::int64_t own = args.labels[row];
  if (args.weights == nullptr || own < 0) return {own, -1};
  const std::int64_t partner = args.labels[row ^ 1];
  const double weight = args.weights[row];
  if (partner < 0 || partner == own || weight >= 1) return {own, -1};
  if (weight <= 0) return {partner, -1};
  return weight >= 0.5 ? RowTarget{own, partner, weight} : RowTarget{partner, own, 1 - weight};
}

/// Returns the weight of the class `label`, which must be valid.
template <class T>
KOKKOS_INLINE_FUNCTION float weight_of_class(const CrossEntropy<T>& args, std::int64_t label) {
  return args.class_weights == nullptr ? 1.0f : args.class_weights[label];
}

template <class T>
struct Row {
  CrossEntropy<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row, const HostGroup& group) const {
    const std::int64_t classes = args.classes;
    const RowTarget target = target_of(args, row);
    const std::int64_t label = target.label, second = target.second;
    const T* x = args.logits + row * classes;
    T* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * classes;
    // Label -1: the row is missing. A label >= classes makes the loss NaN instead of reading beyond
    // the row.
    if (!target.is_valid(classes)) {
      args.row_losses[row] = label < 0 ? 0 : not_a_number;
      args.row_ranks[row] = label < 0 ? -1 : last_rank;
      const T value = from_float<T>(label < 0 ? 0.0f : not_a_number);
      for (std::int64_t i = 0; dx != nullptr && i < classes; ++i) dx[i] = value;
      return;
    }
    const float label_logit = to_float(x[label]),
                largest = group.largest(classes, [=](std::int64_t i) { return to_float(x[i]); });
    const Sums<2> sums = group.sum(
        classes, [=](std::int64_t i) { return fast_exp(to_float(x[i]) - largest); },
        [=](std::int64_t i) { return to_float(x[i]) - largest; });
    // A class ranks before the label if its logit is greater, or equal at a lower index. The
    // comparisons are negated, so that a NaN on either side counts as "before".
    const std::int32_t rank =
        group.count(0, label, [=](std::int64_t i) { return !(to_float(x[i]) < label_logit); }) +
        group.count(label, classes,
                    [=](std::int64_t i) { return !(to_float(x[i]) <= label_logit); });
    const double smoothing = args.label_smoothing, even = smoothing / static_cast<double>(classes),
                 exponentials = sums.value[0];
    const double label_difference = static_cast<double>(label_logit) - largest,
                 label_target = (1 - smoothing) * target.weight;
    // Without smoothing, an infinite difference must not become 0 * infinity = NaN.
    const double smoothed = smoothing > 0 ? even * sums.value[1] : 0;
    const float weight = weight_of_class(args, label), scale = args.gradient_scale * weight;
    args.row_losses[row] =
        weight * (log(exponentials) - label_target * label_difference - smoothed);
    args.row_ranks[row] = rank;
    const auto gradient_at = [&](double difference, double share) {
      return static_cast<float>(scale * (exp(difference) / exponentials - share - even));
    };
    const float at_label = gradient_at(label_difference, label_target);
    float at_second = 0;
    if (second >= 0) {
      const double difference = static_cast<double>(to_float(x[second])) - largest,
                   share = (1 - smoothing) * (1 - target.weight);
      args.row_losses[row] -= share * difference;
      at_second = gradient_at(difference, share);
    }
    if (dx == nullptr) return;
    const float inverse = static_cast<float>(scale / exponentials);
    const float level = static_cast<float>(even * scale);
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i)
      dx[i] = from_float<T>(fast_exp(to_float(x[i]) - largest) * inverse - level);
    dx[label] = from_float<T>(at_label);
    if (second >= 0) dx[second] = from_float<T>(at_second);
  }
};

template <class T>
struct RowByTeam {
  CrossEntropy<T> args;
  /// logits and gradient are aligned to packs
  bool packs;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const int classes = static_cast<int>(args.classes),
              head = packs ? unaligned_head<logit_lanes<T>>(row * classes, classes) : classes;
    const RowTarget target = target_of(args, row);
    const int label = static_cast<int>(target.label), second = static_cast<int>(target.second);
    const T* x = args.logits + row * args.classes;
    T* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * args.classes;
    if (!target.is_valid(classes)) {
      if (group.is_leader()) {
        args.row_losses[row] = label < 0 ? 0 : not_a_number;
        args.row_ranks[row] = label < 0 ? -1 : last_rank;
      }
      return fill_row(group, dx, classes, label < 0 ? 0.0f : not_a_number);
    }
    // Read before the gradient may overwrite them.
    const float label_logit = to_float(x[label]),
                second_logit = second < 0 ? 0 : to_float(x[second]);
    const double smoothing = args.label_smoothing, even = smoothing / static_cast<double>(classes),
                 label_target = (1 - smoothing) * target.weight,
                 second_target = (1 - smoothing) * (1 - target.weight);
    const SoftmaxOfRow softmax =
        softmax_of_row<logit_lanes<T>>(group, SoftmaxStatisticsStep<T>{x}, head, classes);
    // Read here, so that no register holds it in the pass above (device_code_test.py).
    const float weight = weight_of_class(args, label);
    SoftmaxRow gradient{.classes = classes,
                        .label = label,
                        .label_logit = label_logit,
                        .largest = softmax.largest,
                        .exponentials = softmax.exponentials,
                        .scale = args.gradient_scale * weight,
                        .label_target = label_target,
                        .even = even};
    const std::int32_t rank = gradient_of_row(group, x, dx, head, gradient);
    if (!group.is_leader()) return;
    const auto difference = [&](float logit) {
      return static_cast<double>(logit) - softmax.largest;
    };
    const double smoothed =
        smoothing > 0 ? even * (softmax.logits - static_cast<double>(classes) * softmax.largest)
                      : 0;
    args.row_losses[row] =
        weight * (log(softmax.exponentials) - label_target * difference(label_logit) - smoothed);
    args.row_ranks[row] = rank;
    if (second < 0) return;
    args.row_losses[row] -= second_target * difference(second_logit);
    if (dx == nullptr) return;
    gradient.label_logit = second_logit;
    gradient.label_target = second_target;
    dx[second] = from_float<T>(gradient.at_label());
  }
};

template <class T>
struct Sum {
  CrossEntropy<T> args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    const CrossEntropy<T> a = args;
    const Sums<4> sums =
        group.add_in_double(Sums<4>(), args.rows, [=](std::int64_t row, double* term) {
          const std::int32_t rank = a.row_ranks[row];
          // A row that is not missing may have a label that is no class, without a weight.
          const std::int32_t label = a.labels[row];
          const double weight = rank >= 0 && label < a.classes ? weight_of_class(a, label) : 1.0f;
          term[0] = rank < 0 ? 0 : a.row_losses[row];
          term[1] = rank >= 0 ? weight : 0;
          term[2] = rank >= 0 && rank < 1 ? weight : 0;
          term[3] = rank >= 0 && rank < 5 ? weight : 0;
        });
    if (!group.is_leader()) return;
    for (int s = 0; s < 4; ++s) args.sums[s] = sums.value[s];
  }
};

template <class Space, class T>
void run(const Space& space, const CrossEntropy<T>& args) {
  if constexpr (on_host<Space>) {
    for_each_group(space, row_label, args.rows, Row<T>{args});
  } else {
    for_each_team(space, row_label, args.rows, softmax_team<T>(args.classes),
                  RowByTeam<T>{args, packs_fit(args.logits, args.dlogits)});
  }
  for_each_group(space, sum_label, 1, Sum<T>{args});
}

}  // namespace

template <class T>
void cross_entropy(const Stream& stream, const CrossEntropy<T>& args) {
  dispatch(stream, [=](const auto& space) { run(space, args); });
}
template void cross_entropy(const Stream&, const CrossEntropy<float>&);
template void cross_entropy(const Stream&, const CrossEntropy<BFloat16>&);
template void cross_entropy(const Stream&, const CrossEntropy<Float16>&);

}  // namespace trireme::kernels
