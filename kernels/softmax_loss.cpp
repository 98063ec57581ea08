#include "trireme/kernels/softmax_loss.hpp"

#include "launch.hpp"
#include "softmax_row.hpp"
#include "vector_math.hpp"

// A row a task: statistics read its logits twice (the second time from the cache), the gradient reads them once and writes once.
// Sums of a row are taken in lanes and blocks of a fixed size, sums of rows by one task in the order of the rows: no number of threads,
// and no cut of the rows into tiles, shows in them.

namespace trireme::kernels {
namespace {

const std::string statistics_label = "trireme/kernels/softmax_statistics";
const std::string merge_label = "trireme/kernels/softmax_merge_statistics";
const std::string gradient_label = "trireme/kernels/softmax_gradient";
const std::string sums_label = "trireme/kernels/softmax_sums";

template <class T>
struct StatisticsOfRow {
  SoftmaxStatistics<T> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const T* x = args.logits + row * args.classes;
    const float largest = largest_of(x, args.classes);
    double exponentials = 0, logits = 0;
    for (std::int64_t begin = 0; begin < args.classes; begin += block) {
      const std::int64_t end = begin + block < args.classes ? begin + block : args.classes;
      float exponential_lanes[lanes] = {}, logit_lanes[lanes] = {};
      std::int64_t i = begin;
      for (; i + lanes <= end; i += lanes) {
#pragma omp simd
        for (int lane = 0; lane < lanes; ++lane) {
          const float value = to_float(x[i + lane]);
          exponential_lanes[lane] += fast_exp(value - largest);
          logit_lanes[lane] += value;
        }
      }
      for (int lane = 0; i < end; ++i, ++lane) {
        exponential_lanes[lane] += fast_exp(to_float(x[i]) - largest);
        logit_lanes[lane] += to_float(x[i]);
      }
      for (int lane = 0; lane < lanes; ++lane) {
        exponentials += exponential_lanes[lane];
        logits += logit_lanes[lane];
      }
    }
    const std::int64_t label = args.labels[row] - args.first;
    args.statistics[row] = {largest, static_cast<float>(exponentials), static_cast<float>(logits),
                            args.labels[row] >= 0 && label >= 0 && label < args.classes ? to_float(x[label]) : 0.0f};
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
    float label_logit = 0;  // one part's; 0 in all others
    for (std::int64_t part = 0; part < args.parts; ++part) {
      const RowStatistics& s = args.statistics[part * args.rows + row];
      exponentials += s.exponentials * exp(static_cast<double>(s.largest) - largest);
      logits += s.logits;
      label_logit += s.label_logit;
    }
    args.merged[row] = {largest, static_cast<float>(exponentials), static_cast<float>(logits), label_logit};
  }
};

template <class T, class G>
struct GradientOfRow {
  SoftmaxGradient<T, G> args;

  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const std::int64_t classes = args.classes, label = args.labels[row] - args.first;
    const T* x = args.logits + row * classes;
    G* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * classes;
    if (args.labels[row] < 0 || args.labels[row] >= args.total_classes) {  // missing; or no such class, which the loss shows too
      const G value = from_float<G>(args.labels[row] < 0 ? 0.0f : not_a_number);
      for (std::int64_t i = 0; dx != nullptr && i < classes; ++i) dx[i] = value;
      return;
    }
    const RowStatistics s = args.merged[row];
    args.ranks[row] += classes_before(x, label, s.label_logit);
    if (dx == nullptr) return;
    const double smoothing = args.label_smoothing, even = smoothing / static_cast<double>(args.total_classes), scale = args.gradient_scale;
    const float inverse = static_cast<float>(scale / s.exponentials), level = static_cast<float>(even * scale), largest = s.largest;
#pragma omp simd
    for (std::int64_t i = 0; i < classes; ++i) dx[i] = from_float<G>(fast_exp(to_float(x[i]) - largest) * inverse - level);
    if (label < 0 || label >= classes) return;
    const double probability = exp(static_cast<double>(s.label_logit) - s.largest) / s.exponentials;
    dx[label] = from_float<G>(static_cast<float>(scale * (probability - (1 - smoothing) - even)));
  }

  /// A class stands before the label when its logit is greater, or equal at a lower number; written so that a NaN anywhere puts the label
  /// behind. The label may be another part's: then its place is before or behind all of this one's.
  KOKKOS_FUNCTION std::int32_t classes_before(const T* x, std::int64_t label, float label_logit) const {
    const std::int64_t lower = label < 0 ? 0 : label < args.classes ? label : args.classes;
    std::int32_t before = 0;
#pragma omp simd reduction(+ : before)
    for (std::int64_t i = 0; i < lower; ++i) before += !(to_float(x[i]) < label_logit);
#pragma omp simd reduction(+ : before)
    for (std::int64_t i = lower; i < args.classes; ++i) before += !(to_float(x[i]) <= label_logit);
    return before;
  }
};

struct SumOfRows {
  SoftmaxSums args;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    const double smoothing = args.label_smoothing;
    double loss = args.add ? args.sums[0] : 0;
    std::int64_t count = 0, first = 0, fifth = 0;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      if (args.labels[row] < 0) continue;
      const bool known = args.labels[row] < args.total_classes;  // else the loss says so (not finite)
      const RowStatistics& s = args.merged[row];
      const double log_sum = s.largest + log(static_cast<double>(s.exponentials));
      // Where smoothing is off its term must not turn an infinite logit into a NaN.
      const double smoothed = smoothing > 0 ? smoothing * s.logits / static_cast<double>(args.total_classes) : 0;
      loss += known ? log_sum - (1 - smoothing) * s.label_logit - smoothed : not_a_number;
      ++count;
      first += known && args.ranks[row] < 1;
      fifth += known && args.ranks[row] < 5;
    }
    args.sums[0] = loss;
    args.sums[1] = (args.add ? args.sums[1] : 0) + static_cast<double>(count);
    args.sums[2] = (args.add ? args.sums[2] : 0) + static_cast<double>(first);
    args.sums[3] = (args.add ? args.sums[3] : 0) + static_cast<double>(fifth);
  }
};

template <class Row>
void for_each_row(const Stream& stream, const std::string& label, std::int64_t rows, const Row& row) {
  dispatch(stream, [&](const auto& space) { for_each_index(space, label, rows, row); });
}

}  // namespace

template <class T>
void softmax_statistics(const Stream& stream, const SoftmaxStatistics<T>& args) {
  for_each_row(stream, statistics_label, args.rows, StatisticsOfRow<T>{args});
}
template void softmax_statistics(const Stream&, const SoftmaxStatistics<float>&);
template void softmax_statistics(const Stream&, const SoftmaxStatistics<BFloat16>&);

void merge_statistics(const Stream& stream, const MergeStatistics& args) { for_each_row(stream, merge_label, args.rows, MergeOfRow{args}); }

template <class T, class G>
void softmax_gradient(const Stream& stream, const SoftmaxGradient<T, G>& args) {
  for_each_row(stream, gradient_label, args.rows, GradientOfRow<T, G>{args});
}
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, float>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, BFloat16>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<BFloat16, BFloat16>&);

void softmax_sums(const Stream& stream, const SoftmaxSums& args) { for_each_row(stream, sums_label, 1, SumOfRows{args}); }

}  // namespace trireme::kernels
