#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Softmax cross-entropy of logits [B, V] with label smoothing s: the target is (1-s) one-hot + s/V
/// (Szegedy et al. 2016), as PyTorch's. `labels` int32 [B]; a label of -1 marks a missing row: it
/// counts nowhere and its gradient is 0. `sums` float64 [4] = loss sum, count, correct at rank 1,
/// correct at rank 5 (rows in order, in double). `dlogits` (logits' dtype; undefined in evaluation)
/// = gradient_scale * (softmax - target); may be the memory of logits.
void cross_entropy(Context&, const Tensor& logits, const Tensor& labels, float label_smoothing,
                   float gradient_scale, const Tensor& sums, const Tensor& dlogits);

}  // namespace trireme::ops
