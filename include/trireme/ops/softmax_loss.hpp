#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

// The pieces of a softmax cross-entropy whose classes may be split over ranks (a part each) and
// whose rows come in tiles. In order: statistics of each part, merge of all parts', gradient and
// ranks of each part, sums. Logits float32, bfloat16 or float16 [rows, classes of the part]; labels
// int32 [rows], numbers of the whole's classes; a label of -1 marks a missing row, which counts
// nowhere.

/// What a row's softmax needs from a part of its classes: stats float32 [rows, 4] = maximum, sum of
/// exp(logit - maximum), sum of logits (for label smoothing), logit of the label (0 where the label
/// is not in this part). `first`: number of the part's class 0 in the whole.
void softmax_statistics(Context&, const Tensor& logits, const Tensor& labels, std::int64_t first,
                        const Tensor& stats);

/// stats [parts, rows, 4] of all parts, in order, joined into merged [rows, 4].
void merge_statistics(Context&, const Tensor& stats, const Tensor& merged);

struct SoftmaxGradient {
  std::int64_t first = 0;          ///< number of the part's class 0 in the whole
  std::int64_t total_classes = 0;  ///< of the whole
  float label_smoothing = 0, gradient_scale = 0;
};
/// dlogits = gradient_scale * (softmax - target), target = (1 - s) one-hot + s / total_classes; may
/// be the memory of logits where dtypes agree, a narrower type from float32 logits is allowed;
/// undefined in evaluation. ranks int32 [rows] += number of this part's classes that stand before
/// the label: a greater logit, or an equal one at a lower number.
void softmax_gradient(Context&, const SoftmaxGradient&, const Tensor& logits, const Tensor& labels,
                      const Tensor& merged, const Tensor& dlogits, const Tensor& ranks);

/// sums float64 [4] = (first tile) or += loss sum, count, correct at rank 1, correct at rank 5;
/// rows added in ascending order, in double. `ranks` are summed over all parts.
void softmax_sums(Context&, const Tensor& merged, const Tensor& labels, const Tensor& ranks,
                  std::int64_t total_classes, float label_smoothing, const Tensor& sums, Write);

}  // namespace trireme::ops
