// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// The targets of cross_entropy(): (1-s) one-hot + s/V with label smoothing s, as in PyTorch
/// (Szegedy et al. 2016).
///
/// With `weights`, row r has two classes: its own with weight w[r], and that of row r xor 1 with
/// the rest, as for mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019):
///   (1-s) (w one-hot(own) + (1-w) one-hot(partner)) + s/V
struct ClassTargets {
  Tensor labels;  ///< int32 [B]; -1 marks a missing row, also as a partner
  float smoothing = 0;
  Tensor weights = {};  ///< float32 [B] in [0, 1], B even; undefined: 1
  /// float32 [V], not together with `weights` or `smoothing`; undefined: 1
  Tensor class_weights = {};
};

/// Enqueues the softmax cross-entropy of logits [B, V].
///
/// With `class_weights` a row counts as often as the weight of its label says, in all sums.
/// A missing row is not counted and has gradient 0. The partner of a missing row has the weight 1.
/// `sums` float64 [4] = loss sum, count, correct at rank 1, correct at rank 5, added row by row in
/// double precision. The class of the larger weight is ranked, at 1/2 the row's own. `dlogits`
/// (dtype of logits; undefined in evaluation) = gradient_scale * (softmax - target). It may be the
/// memory of logits.
void cross_entropy(Context&, const Tensor& logits, const ClassTargets& targets,
                   float gradient_scale, const Tensor& sums, const Tensor& dlogits);

}  // namespace trireme::ops
