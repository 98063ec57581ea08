#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Enqueues the softmax cross-entropy of logits [B, V] with label smoothing s. The target is (1-s)
/// one-hot + s/V, as in PyTorch (Szegedy et al. 2016).
///
/// `labels` int32 [B]: a label of -1 marks a missing row, which is not counted and has gradient 0.
/// `sums` float64 [4] = loss sum, count, correct at rank 1, correct at rank 5, added row by row in
/// double precision. `dlogits` (dtype of logits; undefined in evaluation) = gradient_scale *
/// (softmax - target). It may be the memory of logits.
void cross_entropy(Context&, const Tensor& logits, const Tensor& labels, float label_smoothing,
                   float gradient_scale, const Tensor& sums, const Tensor& dlogits);

}  // namespace trireme::ops
