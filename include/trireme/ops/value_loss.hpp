// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/value_loss.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// The form of a loss of values, with e = output - target, as in PyTorch; of its logistic form an
/// output x is the logit of a target y from 0 to 1:
/// - squared: e^2 (MSELoss)
/// - absolute: |e| (L1Loss); its gradient at 0 is 0
/// - huber: e^2 / 2 if |e| <= delta, else delta (|e| - delta / 2) (HuberLoss)
/// - logistic: max(x, 0) - x y + log(1 + exp(-|x|)) (BCEWithLogitsLoss)
using kernels::ValueLossForm;

/// The targets of value_loss(). With `weights` the target of row r is weights[r] times its own plus
/// the rest of that of row r xor 1, as for mixup (Zhang et al. 2018).
struct ValueTargets {
  Tensor values;        ///< float32 [B, D]; NaN marks a missing value
  Tensor weights = {};  ///< float32 [B] in [0, 1], B even; undefined: 1
};

/// Enqueues the loss of outputs [B, D].
///
/// A missing value is not counted and has gradient 0. `sums` float64 [4] = loss sum, number of
/// values, 0, 0, added row by row in double precision. `doutputs` (dtype of outputs; undefined in
/// evaluation) = gradient_scale * d(loss sum) / d(outputs). It may be the memory of outputs.
/// `delta`: of Huber's loss.
void value_loss(Context&, const Tensor& outputs, const ValueTargets& targets, ValueLossForm form,
                float delta, float gradient_scale, const Tensor& sums, const Tensor& doutputs);

}  // namespace trireme::ops
