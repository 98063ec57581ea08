// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

// The steps of a softmax cross-entropy whose classes may be split over tensor ranks and whose rows
// are computed in tiles. Each rank holds a part of the classes: logits [rows, classes of the part],
// float32, bfloat16 or float16. labels int32 [rows] are indices among all classes. A label of -1
// marks a missing row, which is not counted.
//
//   1. softmax_statistics   statistics of each rank's own part
//   2. (all-gather)         by the caller
//   3. merge_statistics     statistics of the whole
//   4. softmax_gradient     gradient and rank of the label within each part
//   5. softmax_sums         loss and accuracy sums

/// Enqueues stats float32 [rows, 4] of one part of the classes: maximum, sum of exp(logit -
/// maximum), sum of logits (for label smoothing), and the logit of the label (0 if the label is in
/// another part). `first`: index of the part's first class among all classes.
void softmax_statistics(Context&, const Tensor& logits, const Tensor& labels, std::int64_t first,
                        const Tensor& stats);

/// Enqueues merged [rows, 4] = the statistics of the whole from stats [parts, rows, 4], in the
/// order of the parts.
void merge_statistics(Context&, const Tensor& stats, const Tensor& merged);

/// Parameters of softmax_gradient.
struct SoftmaxGradient {
  std::int64_t first = 0;          ///< index of the part's first class among all classes
  std::int64_t total_classes = 0;  ///< number of classes of all parts
  float label_smoothing = 0, gradient_scale = 0;
};
/// Enqueues dlogits = gradient_scale * (softmax - target) with target = (1 - s) one-hot + s /
/// total_classes, and `ranks`.
///
/// dlogits may be the memory of logits if their dtypes agree, may be narrower than float32 logits,
/// and is undefined in evaluation. ranks int32 [rows] += the number of this part's classes that are
/// ranked before the label: those with a greater logit, or with an equal one and a lower number.
void softmax_gradient(Context&, const SoftmaxGradient&, const Tensor& logits, const Tensor& labels,
                      const Tensor& merged, const Tensor& dlogits, const Tensor& ranks);

/// Enqueues statistics, gradient and ranks of logits that are not split: what softmax_statistics()
/// and softmax_gradient() in place enqueue, with `first` = 0. Each row is read once and written
/// once, if it fits into the shared memory of a GPU; else the two run one after the other. The
/// memory is the same, and on the CPU the bits. dlogits is logits, or undefined in evaluation.
void fused_softmax(Context&, const SoftmaxGradient&, const Tensor& logits, const Tensor& labels,
                   const Tensor& statistics, const Tensor& dlogits, const Tensor& ranks);

/// Enqueues sums float64 [4] = (first tile) or += loss sum, count, correct at rank 1, correct at
/// rank 5. Rows are added in ascending order in double precision. `ranks` must be summed over all
/// parts before.
void softmax_sums(Context&, const Tensor& merged, const Tensor& labels, const Tensor& ranks,
                  std::int64_t total_classes, float label_smoothing, const Tensor& sums, Write);

}  // namespace trireme::ops
