#include "trireme/kernels/softmax_loss.hpp"

#include "row_group.hpp"
#include "vector_math.hpp"

// A row a group: statistics read its logits twice (the second time from the cache), the gradient reads them once and writes once.
// Sums of a row are taken in lanes and blocks of a fixed size, sums of rows by one group, on the host in the order of the rows: no number of threads, and
// on the host no cut of the rows into tiles, shows in them.

namespace trireme::kernels {
namespace {

const std::string statistics_label = "trireme/kernels/softmax_statistics";
const std::string merge_label = "trireme/kernels/softmax_merge_statistics";
const std::string gradient_label = "trireme/kernels/softmax_gradient";
const std::string sums_label = "trireme/kernels/softmax_sums";

template <class T>
struct StatisticsOfRow {
  SoftmaxStatistics<T> args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const T* x = args.logits + row * args.classes;
    const float largest = group.largest(args.classes, [=](std::int64_t i) { return to_float(x[i]); });
    const Sums<2> sums =
        group.sum(args.classes, [=](std::int64_t i) { return fast_exp(to_float(x[i]) - largest); }, [=](std::int64_t i) { return to_float(x[i]); });
    if (!group.leads()) return;
    const std::int64_t label = args.labels[row] - args.first;
    args.statistics[row] = {largest, static_cast<float>(sums.value[0]), static_cast<float>(sums.value[1]),
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

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t row, const Group& group) const {
    const std::int64_t classes = args.classes, label = args.labels[row] - args.first, first = group.first(), step = group.step();
    const T* x = args.logits + row * classes;
    G* dx = args.dlogits == nullptr ? nullptr : args.dlogits + row * classes;
    if (args.labels[row] < 0 || args.labels[row] >= args.total_classes) {  // missing; or no such class, which the loss shows too
      const G value = from_float<G>(args.labels[row] < 0 ? 0.0f : not_a_number);
      for (std::int64_t i = first; dx != nullptr && i < classes; i += step) dx[i] = value;
      return;
    }
    const RowStatistics s = args.merged[row];
    const std::int32_t before = classes_before(group, x, label, s.label_logit);
    if (group.leads()) args.ranks[row] += before;
    if (dx == nullptr) return;
    const double smoothing = args.label_smoothing, even = smoothing / static_cast<double>(args.total_classes), scale = args.gradient_scale;
    const float inverse = static_cast<float>(scale / s.exponentials), level = static_cast<float>(even * scale), largest = s.largest;
#pragma omp simd
    for (std::int64_t i = first; i < classes; i += step) dx[i] = from_float<G>(fast_exp(to_float(x[i]) - largest) * inverse - level);
    if (label < 0 || label >= classes || !group.walks(label)) return;
    const double probability = exp(static_cast<double>(s.label_logit) - s.largest) / s.exponentials;
    dx[label] = from_float<G>(static_cast<float>(scale * (probability - (1 - smoothing) - even)));
  }

  /// A class stands before the label when its logit is greater, or equal at a lower number; written so that a NaN anywhere puts the label
  /// behind. The label may be another part's: then its place is before or behind all of this one's.
  template <class Group>
  KOKKOS_FUNCTION std::int32_t classes_before(const Group& group, const T* x, std::int64_t label, float label_logit) const {
    const std::int64_t lower = label < 0 ? 0 : label < args.classes ? label : args.classes;
    return group.count(0, lower, [=](std::int64_t i) { return !(to_float(x[i]) < label_logit); }) +
           group.count(lower, args.classes, [=](std::int64_t i) { return !(to_float(x[i]) <= label_logit); });
  }
};

/// All rows, one group: counts are whole numbers, exact in double.
struct SumOfRows {
  SoftmaxSums args;

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t, const Group& group) const {
    const double smoothing = args.label_smoothing, total_classes = static_cast<double>(args.total_classes);
    const SoftmaxSums a = args;
    Sums<4> before;
    for (int s = 0; s < 4 && args.add; ++s) before.value[s] = args.sums[s];
    const Sums<4> sums = group.add_in_double(before, args.rows, [=](std::int64_t row, double* term) {
      const bool counts = a.labels[row] >= 0, known = counts && a.labels[row] < a.total_classes;  // else the loss says so (not finite)
      const RowStatistics& s = a.merged[row];
      // Where smoothing is off its term must not turn an infinite logit into a NaN.
      const double smoothed = smoothing > 0 ? smoothing * s.logits / total_classes : 0;
      const double log_sum = s.largest + log(static_cast<double>(s.exponentials));
      term[0] = !counts ? 0.0 : known ? log_sum - (1 - smoothing) * s.label_logit - smoothed : static_cast<double>(not_a_number);
      term[1] = counts;
      term[2] = known && a.ranks[row] < 1;
      term[3] = known && a.ranks[row] < 5;
    });
    if (!group.leads()) return;
    for (int s = 0; s < 4; ++s) args.sums[s] = sums.value[s];
  }
};

template <class Row>
void for_each_row(const Stream& stream, const std::string& label, std::int64_t rows, const Row& row) {
  dispatch(stream, [&](const auto& space) { for_each_group(space, label, rows, row); });
}

}  // namespace

template <class T>
void softmax_statistics(const Stream& stream, const SoftmaxStatistics<T>& args) {
  for_each_row(stream, statistics_label, args.rows, StatisticsOfRow<T>{args});
}
template void softmax_statistics(const Stream&, const SoftmaxStatistics<float>&);
template void softmax_statistics(const Stream&, const SoftmaxStatistics<BFloat16>&);

void merge_statistics(const Stream& stream, const MergeStatistics& args) {
  dispatch(stream, [&](const auto& space) { for_each_index(space, merge_label, args.rows, MergeOfRow{args}); });
}

template <class T, class G>
void softmax_gradient(const Stream& stream, const SoftmaxGradient<T, G>& args) {
  for_each_row(stream, gradient_label, args.rows, GradientOfRow<T, G>{args});
}
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, float>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<float, BFloat16>&);
template void softmax_gradient(const Stream&, const SoftmaxGradient<BFloat16, BFloat16>&);

void softmax_sums(const Stream& stream, const SoftmaxSums& args) { for_each_row(stream, sums_label, 1, SumOfRows{args}); }

}  // namespace trireme::kernels
