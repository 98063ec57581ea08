// Softmax cross-entropy over the rows of logits [rows, classes]. Called by src/ops/loss.cpp at the
// end of the forward pass; the gradient is computed in the same launch.
//
//   host, a thread per row:   maximum | sum of exp(x - maximum) | rank of the label | gradient
//   device, a team per row:   maximum and sum in one pass       | rank and gradient in one pass
//   then one group:           sums of losses, counts and ranks over all rows
//
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

template <class T>
struct Row {
  CrossEntropy<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row, const HostGroup& group) const {
    const std::int64_t classes = args.classes, label = args.labels[row];
    const T* x = args.logits + row * classes;
    T* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * classes;
    // Label -1: the row is missing. A label >= classes makes the loss NaN instead of reading beyond
    // the row.
    if (label < 0 || label >= classes) {
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
    const double label_difference = static_cast<double>(label_logit) - largest;
    // Without smoothing, an infinite difference must not become 0 * infinity = NaN.
    const double smoothed = smoothing > 0 ? even * sums.value[1] : 0;
    args.row_losses[row] = log(exponentials) - (1 - smoothing) * label_difference - smoothed;
    args.row_ranks[row] = rank;
    if (dx == nullptr) return;
    const float scale = args.gradient_scale,
                inverse = static_cast<float>(args.gradient_scale / exponentials);
    const float level = static_cast<float>(even * scale);
    const float at_label =
        static_cast<float>(scale * (exp(label_difference) / exponentials - (1 - smoothing) - even));
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i)
      dx[i] = from_float<T>(fast_exp(to_float(x[i]) - largest) * inverse - level);
    dx[label] = from_float<T>(at_label);
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
    const std::int32_t label = args.labels[row];
    const T* x = args.logits + row * args.classes;
    T* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * args.classes;
    if (label < 0 || label >= classes) {
      if (group.is_leader()) {
        args.row_losses[row] = label < 0 ? 0 : not_a_number;
        args.row_ranks[row] = label < 0 ? -1 : last_rank;
      }
      return fill_row(group, dx, classes, label < 0 ? 0.0f : not_a_number);
    }
    // Read before the gradient may overwrite it.
    const float label_logit = to_float(x[label]);
    const double smoothing = args.label_smoothing, even = smoothing / static_cast<double>(classes);
    const SoftmaxOfRow softmax = softmax_of_row(group, x, head, classes);
    const std::int32_t rank = gradient_of_row(group, x, dx, head,
                                              {.classes = classes,
                                               .label = label,
                                               .label_logit = label_logit,
                                               .largest = softmax.largest,
                                               .exponentials = softmax.exponentials,
                                               .scale = args.gradient_scale,
                                               .smoothing = smoothing,
                                               .even = even});
    if (!group.is_leader()) return;
    const double difference = static_cast<double>(label_logit) - softmax.largest;
    const double smoothed =
        smoothing > 0 ? even * (softmax.logits - static_cast<double>(classes) * softmax.largest)
                      : 0;
    args.row_losses[row] = log(softmax.exponentials) - (1 - smoothing) * difference - smoothed;
    args.row_ranks[row] = rank;
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
          term[0] = rank < 0 ? 0 : a.row_losses[row];
          term[1] = rank >= 0;
          term[2] = rank >= 0 && rank < 1;
          term[3] = rank >= 0 && rank < 5;
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
