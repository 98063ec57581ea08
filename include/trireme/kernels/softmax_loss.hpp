// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Statistics of one row (float32): maximum logit, sum of exp(logit - maximum), sum of logits,
/// logit of the label (0 if this part does not hold it).
struct RowStatistics {
  float largest, exponentials, logits, label_logit;
};

/// Arguments of softmax_statistics(): logits [rows, classes] of one part. Its class 0 is class
/// `first` of the whole.
template <class T>
struct SoftmaxStatistics {
  std::int64_t rows = 0, classes = 0, first = 0;
  const T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  /// = [rows]
  RowStatistics* statistics = nullptr;
};
/// Enqueues the statistics of one part of the classes.
template <class T>
void softmax_statistics(const Stream&, const SoftmaxStatistics<T>&);

/// Arguments of merge_statistics(): the statistics of all parts, part by part.
struct MergeStatistics {
  std::int64_t parts = 0, rows = 0;
  /// [parts, rows]
  const RowStatistics* statistics = nullptr;
  /// = [rows]
  RowStatistics* merged = nullptr;
};
/// Enqueues the combination of all parts' statistics, in ascending order of the parts.
void merge_statistics(const Stream&, const MergeStatistics&);

/// Arguments of softmax_gradient(): logits of type T, gradient of type G; ops/softmax_loss.hpp has
/// the formula.
template <class T, class G>
struct SoftmaxGradient {
  std::int64_t rows = 0, classes = 0, first = 0, total_classes = 0;
  float label_smoothing = 0, gradient_scale = 0;
  const T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  const RowStatistics* merged = nullptr;
  /// = gradient; null: not computed. May be logits if G is T.
  G* dlogits = nullptr;
  /// += [rows]: classes of this part that rank before the label
  std::int32_t* ranks = nullptr;
};
/// Enqueues gradient and ranks. Reads the logits once and writes dlogits once.
template <class T, class G>
void softmax_gradient(const Stream&, const SoftmaxGradient<T, G>&);

/// Arguments of fused_softmax(): logits [rows, classes] of all classes.
template <class T>
struct FusedSoftmax {
  std::int64_t rows = 0, classes = 0;
  float label_smoothing = 0, gradient_scale = 0;
  /// = gradient, if `overwrites`
  T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  /// = [rows]
  RowStatistics* statistics = nullptr;
  /// += [rows]: classes that rank before the label
  std::int32_t* ranks = nullptr;
  bool overwrites = false;
};
/// Enqueues statistics, ranks and gradient in one launch: softmax_statistics(), then
/// softmax_gradient() in place. Reads the logits once and writes them once.
template <class T>
void fused_softmax(const Stream&, const FusedSoftmax<T>&);
/// Returns whether a row of `classes` logits fits into the shared memory that fused_softmax() needs
/// on a GPU: that of the stream's device, without one that of compute capability 9.0.
template <class T>
bool fused_softmax_fits(const Stream&, std::int64_t classes);

/// Arguments of softmax_sums(): merged statistics and ranks (summed over all parts) of `rows` rows.
struct SoftmaxSums {
  std::int64_t rows = 0, total_classes = 0;
  float label_smoothing = 0;
  const RowStatistics* merged = nullptr;
  const std::int32_t *labels = nullptr, *ranks = nullptr;
  /// = or += [4]: loss, count, correct at rank 1, correct at rank 5
  double* sums = nullptr;
  bool add = false;
  /// workspace [softmax_block_sum_count]: sums of blocks of rows, read and written on a device only
  double* block_sums = nullptr;
};
/// Returns the number of doubles in the workspace `block_sums`.
std::int64_t softmax_block_sum_count(std::int64_t rows);
/// Enqueues the sums over rows, in double precision.
void softmax_sums(const Stream&, const SoftmaxSums&);

}  // namespace trireme::kernels
