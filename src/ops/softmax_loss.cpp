// SPDX-License-Identifier: Apache-2.0
//
// The steps of a softmax cross-entropy over split classes: each function checks shapes, counts
// bytes and launches one kernel. The caller runs them in the order of softmax_loss.hpp.

#include "trireme/ops/softmax_loss.hpp"

#include "ops/dispatch/operand.hpp"
#include "trireme/kernels/softmax_loss.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

using kernels::RowStatistics;

/// Returns stats [.., 4] as rows of the kernels' struct of four floats.
RowStatistics* row_statistics(const Tensor& stats) {
  return reinterpret_cast<RowStatistics*>(stats.as<float>());
}

bool is_rows(const Tensor& tensor, DType dtype, std::int64_t elements) {
  return tensor.dtype == dtype && tensor.elements() == elements;
}

bool are_logits(const Tensor& logits) {
  return logits.shape.rank() == 2 && logits.shape[1] > 0 && is_compute_type(logits.dtype);
}

template <class T>
void run_statistics(Context& context, const Tensor& logits, const Tensor& labels,
                    std::int64_t first, const Tensor& stats) {
  kernels::softmax_statistics<T>(context.stream(),
                                 {logits.shape[0], logits.shape[1], first, logits.as<T>(),
                                  labels.as<std::int32_t>(), row_statistics(stats)});
}

template <class T, class G>
void run_gradient(Context& context, const SoftmaxGradient& g, const Tensor& logits,
                  const Tensor& labels, const Tensor& merged, const Tensor& dlogits,
                  const Tensor& ranks) {
  kernels::softmax_gradient<T, G>(
      context.stream(),
      {logits.shape[0], logits.shape[1], g.first, g.total_classes, g.label_smoothing,
       g.gradient_scale, logits.as<T>(), labels.as<std::int32_t>(), row_statistics(merged),
       dlogits.defined() ? dlogits.as<G>() : nullptr, ranks.as<std::int32_t>()});
}

}  // namespace

void softmax_statistics(Context& context, const Tensor& logits, const Tensor& labels,
                        std::int64_t first, const Tensor& stats) {
  TRIREME_EXPECT(are_logits(logits) && first >= 0);
  TRIREME_EXPECT(is_rows(labels, DType::int32, logits.shape[0]) &&
                 is_rows(stats, DType::float32, 4 * logits.shape[0]));
  if (context.counts_only("softmax_statistics", bytes_of({&logits, &labels, &stats}))) return;
  with_element_type(logits.dtype,
                    [&]<class T>(T) { run_statistics<T>(context, logits, labels, first, stats); });
}

void merge_statistics(Context& context, const Tensor& stats, const Tensor& merged) {
  TRIREME_EXPECT(stats.shape.rank() == 3 && stats.shape[2] == 4 && stats.dtype == DType::float32);
  TRIREME_EXPECT(is_rows(merged, DType::float32, stats.shape[1] * 4));
  if (context.counts_only("merge_statistics", bytes_of({&stats, &merged}))) return;
  kernels::merge_statistics(context.stream(), {stats.shape[0], stats.shape[1],
                                               row_statistics(stats), row_statistics(merged)});
}

void softmax_gradient(Context& context, const SoftmaxGradient& g, const Tensor& logits,
                      const Tensor& labels, const Tensor& merged, const Tensor& dlogits,
                      const Tensor& ranks) {
  TRIREME_EXPECT(are_logits(logits) && g.first >= 0 &&
                 g.first + logits.shape[1] <= g.total_classes);
  TRIREME_EXPECT(is_rows(labels, DType::int32, logits.shape[0]) &&
                 is_rows(ranks, DType::int32, logits.shape[0]));
  TRIREME_EXPECT(is_rows(merged, DType::float32, 4 * logits.shape[0]));
  TRIREME_EXPECT(!dlogits.defined() || dlogits.elements() == logits.elements());
  TRIREME_EXPECT(!dlogits.defined() || dlogits.dtype == logits.dtype ||
                 (logits.dtype == DType::float32 && dlogits.data != logits.data) || context.meta());
  if (context.counts_only("softmax_gradient",
                          bytes_of({&logits, &labels, &merged, &dlogits, &ranks})))
    return;
  with_element_type(dlogits.defined() ? dlogits.dtype : logits.dtype, [&]<class G>(G) {
    logits.dtype == DType::float32
        ? run_gradient<float, G>(context, g, logits, labels, merged, dlogits, ranks)
        : run_gradient<G, G>(context, g, logits, labels, merged, dlogits, ranks);
  });
}

void fused_softmax(Context& context, const SoftmaxGradient& g, const Tensor& logits,
                   const Tensor& labels, const Tensor& statistics, const Tensor& dlogits,
                   const Tensor& ranks) {
  TRIREME_EXPECT(are_logits(logits) && g.first == 0 && g.total_classes == logits.shape[1]);
  TRIREME_EXPECT(!dlogits.defined() ||
                 (dlogits.data == logits.data && dlogits.dtype == logits.dtype));
  with_element_type(logits.dtype, [&]<class T>(T) {
    if (!kernels::fused_softmax_fits<T>(context.stream(), logits.shape[1])) {
      softmax_statistics(context, logits, labels, 0, statistics);
      return softmax_gradient(context, g, logits, labels, statistics, dlogits, ranks);
    }
    const std::int64_t rows = logits.shape[0];
    TRIREME_EXPECT(is_rows(labels, DType::int32, rows) && is_rows(ranks, DType::int32, rows) &&
                   is_rows(statistics, DType::float32, 4 * rows));
    if (context.counts_only("fused_softmax",
                            bytes_of({&logits, &labels, &statistics, &dlogits, &ranks})))
      return;
    kernels::fused_softmax<T>(
        context.stream(), {rows, logits.shape[1], g.label_smoothing, g.gradient_scale,
                           logits.as<T>(), labels.as<std::int32_t>(), row_statistics(statistics),
                           ranks.as<std::int32_t>(), dlogits.defined()});
  });
}

void softmax_sums(Context& context, const Tensor& merged, const Tensor& labels, const Tensor& ranks,
                  std::int64_t total_classes, float label_smoothing, const Tensor& sums,
                  Write write) {
  const std::int64_t rows = labels.elements();
  TRIREME_EXPECT(is_rows(merged, DType::float32, 4 * rows) && labels.dtype == DType::int32 &&
                 is_rows(ranks, DType::int32, rows));
  TRIREME_EXPECT(is_rows(sums, DType::float64, 4));
  context.count("softmax_sums", bytes_of({&merged, &labels, &ranks}));
  const ArenaScope scope(context.workspace());
  const Tensor block_sums =
      context.workspace().allocate(DType::float64, {kernels::softmax_block_sum_count(rows)});
  if (context.meta()) return;
  kernels::softmax_sums(
      context.stream(),
      {rows, total_classes, label_smoothing, row_statistics(merged), labels.as<std::int32_t>(),
       ranks.as<std::int32_t>(), sums.as<double>(), write == Write::add, block_sums.as<double>()});
}

}  // namespace trireme::ops
