// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// The loss of one value; ops/value_loss.hpp has the formulas.
enum class ValueLossForm : std::uint8_t { squared, absolute, huber, logistic };

/// Arguments of value_loss(): outputs and targets [rows, columns].
///
/// A target that is NaN is missing: it adds nothing and its gradient is 0. With `weights` the
/// target of row r is mixed from rows r and r xor 1; rows is even.
template <class T>
struct ValueLoss {
  ValueLossForm form = ValueLossForm::squared;
  float delta = 1, gradient_scale = 1;  ///< delta: of Huber's loss
  std::int64_t rows = 0, columns = 0;
  const T* outputs = nullptr;
  const float* targets = nullptr;
  /// [rows]: weight of the row's own target; null: 1
  const float* weights = nullptr;
  /// = gradient; null: not computed. May be outputs.
  T* doutputs = nullptr;
  /// workspace [rows, 2]: loss and number of targets of each row
  double* row_sums = nullptr;
  /// = [4]: loss, number of targets, 0, 0
  double* sums = nullptr;
};
/// Enqueues losses and gradient of all rows, then their sums in double precision, in the order of
/// the rows.
template <class T>
void value_loss(const Stream&, const ValueLoss<T>&);

}  // namespace trireme::kernels
