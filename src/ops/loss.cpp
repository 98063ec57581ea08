// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy of whole rows: checks shapes, takes the workspace of row results, and
// launches the kernels.

#include "trireme/ops/loss.hpp"

#include "trireme/kernels/loss.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

template <class T>
void run(Context& context, const Tensor& logits, const ClassTargets& targets, float gradient_scale,
         const Tensor& sums, const Tensor& dlogits, const Tensor& row_losses,
         const Tensor& row_ranks) {
  kernels::CrossEntropy<T> args;
  args.rows = logits.shape[0];
  args.classes = logits.shape[1];
  args.label_smoothing = targets.smoothing;
  args.gradient_scale = gradient_scale;
  args.logits = logits.as<T>();
  args.labels = targets.labels.as<std::int32_t>();
  args.weights = targets.weights.defined() ? targets.weights.as<float>() : nullptr;
  args.class_weights =
      targets.class_weights.defined() ? targets.class_weights.as<float>() : nullptr;
  args.dlogits = dlogits.defined() ? dlogits.as<T>() : nullptr;
  args.row_losses = row_losses.as<double>();
  args.row_ranks = row_ranks.as<std::int32_t>();
  args.sums = sums.as<double>();
  kernels::cross_entropy(context.stream(), args);
}

}  // namespace

void cross_entropy(Context& context, const Tensor& logits, const ClassTargets& targets,
                   float gradient_scale, const Tensor& sums, const Tensor& dlogits) {
  const auto& [labels, smoothing, weights, class_weights] = targets;
  TRIREME_EXPECT(logits.shape.rank() == 2 && is_compute_type(logits.dtype));
  TRIREME_EXPECT(labels.dtype == DType::int32 && labels.elements() == logits.shape[0]);
  TRIREME_EXPECT(!weights.defined() ||
                 (weights.dtype == DType::float32 && weights.elements() == labels.elements() &&
                  labels.elements() % 2 == 0));
  TRIREME_EXPECT(!class_weights.defined() ||
                 (class_weights.dtype == DType::float32 && !weights.defined() && smoothing == 0 &&
                  class_weights.elements() == logits.shape[1]));
  TRIREME_EXPECT(sums.dtype == DType::float64 && sums.elements() == 4);
  TRIREME_EXPECT(!dlogits.defined() ||
                 (dlogits.dtype == logits.dtype && dlogits.elements() == logits.elements()));
  context.count("cross_entropy", logits.bytes() + labels.bytes() +
                                     (weights.defined() ? weights.bytes() : 0) +
                                     (dlogits.defined() ? dlogits.bytes() : 0));
  ArenaScope scope(context.workspace());
  const Tensor row_losses = context.workspace().allocate(DType::float64, {logits.shape[0]});
  const Tensor row_ranks = context.workspace().allocate(DType::int32, {logits.shape[0]});
  if (context.meta()) return;
  with_element_type(logits.dtype, [&]<class T>(T) {
    run<T>(context, logits, targets, gradient_scale, sums, dlogits, row_losses, row_ranks);
  });
}

}  // namespace trireme::ops
