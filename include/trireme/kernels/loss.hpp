// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Arguments of cross_entropy(): softmax cross-entropy of logits [rows, classes] and labels [rows];
/// ops/loss.hpp has the formula.
/// Label -1 marks a missing row: it adds nothing and its gradient is 0. A label >= classes makes
/// the loss NaN. `class_weights` multiply loss, gradient and counts of a row by that of its label.
/// With `weights` the target of row r is mixed from the labels of rows r and r xor 1;
/// rows is even.
template <class T>
struct CrossEntropy {
  std::int64_t rows = 0, classes = 0;
  float label_smoothing = 0, gradient_scale = 1;
  const T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  /// [rows]: weight of the row's own label; null: 1
  const float* weights = nullptr;
  /// [classes]; null: 1. Not together with `weights`.
  const float* class_weights = nullptr;
  /// = gradient; null: not computed. May be logits.
  T* dlogits = nullptr;
  /// workspace [rows]
  double* row_losses = nullptr;
  /// workspace [rows]: number of classes ranked before the label of the larger weight; -1 for a
  /// missing row
  std::int32_t* row_ranks = nullptr;
  /// = [4]: loss, count, correct at rank 1, correct at rank 5, each row with its weight
  double* sums = nullptr;
};
/// Enqueues losses, ranks and gradient of all rows, then their sums in double precision. Memory
/// traffic: logits once (later passes hit the cache), dlogits once.
template <class T>
void cross_entropy(const Stream&, const CrossEntropy<T>&);

}  // namespace trireme::kernels
