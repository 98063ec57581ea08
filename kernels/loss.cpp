#include "trireme/kernels/loss.hpp"

#include <limits>

#include "launch.hpp"
#include "softmax_row.hpp"
#include "vector_math.hpp"

// Row by row: largest logit; then the sum of exp(x - largest) with the label's rank; then, while the row is still in cache, the gradient.
// Row results are left in the workspace and added in the order of the rows by one task, so no number of threads shows in the sums.
// Bytes: logits once, dlogits once.

namespace trireme::kernels {
namespace {

const std::string row_label = "trireme/kernels/cross_entropy_rows";
const std::string sum_label = "trireme/kernels/cross_entropy_sums";

constexpr std::int32_t last_rank = std::numeric_limits<std::int32_t>::max();

struct RowSums {
  double exponentials = 0, differences = 0;  ///< sums of exp(x - largest) and of x - largest
  std::int32_t rank = 0;
};

/// Adds the logits [begin, end), at most a block of them. A class stands before the label when its logit is greater, or equal at a lower
/// index; written so that a NaN anywhere puts the label behind.
template <class T>
KOKKOS_FUNCTION void add_block(const T* x, std::int64_t begin, std::int64_t end, float largest, std::int64_t label, RowSums& sums) {
  float exponentials[lanes] = {}, differences[lanes] = {};
  std::int32_t before[lanes] = {};
  const float label_logit = to_float(x[label]);
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) {
      const float value = to_float(x[i + lane]), difference = value - largest;
      exponentials[lane] += fast_exp(difference);
      differences[lane] += difference;
      before[lane] += i + lane < label ? !(value < label_logit) : !(value <= label_logit);
    }
  }
  for (int lane = 0; i < end; ++i, ++lane) {
    const float value = to_float(x[i]), difference = value - largest;
    exponentials[lane] += fast_exp(difference);
    differences[lane] += difference;
    before[lane] += i < label ? !(value < label_logit) : !(value <= label_logit);
  }
  for (int lane = 0; lane < lanes; ++lane) {
    sums.exponentials += exponentials[lane];
    sums.differences += differences[lane];
    sums.rank += before[lane];
  }
}

template <class T>
struct Row {
  CrossEntropy<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const std::int64_t classes = args.classes, label = args.labels[row];
    const T* x = args.logits + row * classes;
    T* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * classes;
    if (label < 0) {
      args.row_losses[row] = 0;
      args.row_ranks[row] = -1;
      for (std::int64_t i = 0; dx != nullptr && i < classes; ++i) dx[i] = from_float<T>(0);
      return;
    }
    if (label >= classes) {  // no such class: the loss says so (not finite) instead of reading beyond the row
      args.row_losses[row] = not_a_number;
      args.row_ranks[row] = last_rank;
      for (std::int64_t i = 0; dx != nullptr && i < classes; ++i) dx[i] = from_float<T>(not_a_number);
      return;
    }
    const float largest = largest_of(x, classes);
    RowSums sums;
    for (std::int64_t i = 0; i < classes; i += block) add_block(x, i, i + block < classes ? i + block : classes, largest, label, sums);
    const double smoothing = args.label_smoothing, even = smoothing / static_cast<double>(classes);
    const double label_difference = static_cast<double>(to_float(x[label])) - largest;
    // Where smoothing is off its term must not turn an infinite difference into a NaN.
    const double smoothed = smoothing > 0 ? even * sums.differences : 0;
    args.row_losses[row] = log(sums.exponentials) - (1 - smoothing) * label_difference - smoothed;
    args.row_ranks[row] = sums.rank;
    if (dx == nullptr) return;
    const float scale = args.gradient_scale, inverse = static_cast<float>(args.gradient_scale / sums.exponentials);
    const float level = static_cast<float>(even * scale);
    const float at_label = static_cast<float>(scale * (exp(label_difference) / sums.exponentials - (1 - smoothing) - even));
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i) dx[i] = from_float<T>(fast_exp(to_float(x[i]) - largest) * inverse - level);
    dx[label] = from_float<T>(at_label);
  }
};

template <class T>
struct Sum {
  CrossEntropy<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    double loss = 0;
    std::int64_t count = 0, first = 0, fifth = 0;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const std::int32_t rank = args.row_ranks[row];
      if (rank < 0) continue;
      loss += args.row_losses[row];
      ++count;
      first += rank < 1;
      fifth += rank < 5;
    }
    args.sums[0] = loss;
    args.sums[1] = static_cast<double>(count);
    args.sums[2] = static_cast<double>(first);
    args.sums[3] = static_cast<double>(fifth);
  }
};

}  // namespace

template <class T>
void cross_entropy(const Stream& stream, const CrossEntropy<T>& args) {
  dispatch(stream, [&](const auto& space) {
    for_each_index(space, row_label, args.rows, Row<T>{args});
    for_each_index(space, sum_label, 1, Sum<T>{args});
  });
}
template void cross_entropy(const Stream&, const CrossEntropy<float>&);
template void cross_entropy(const Stream&, const CrossEntropy<BFloat16>&);

}  // namespace trireme::kernels
