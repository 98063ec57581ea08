#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Four numbers a row of what softmax needs; see ops/softmax_loss.hpp.
struct RowStatistics {
  float largest, exponentials, logits, label_logit;
};

/// Logits [rows, classes], whose class 0 is number `first` of the whole.
template <class T>
struct SoftmaxStatistics {
  std::int64_t rows = 0, classes = 0, first = 0;
  const T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  RowStatistics* statistics = nullptr;  ///< = [rows]
};
template <class T>
void softmax_statistics(const Stream&, const SoftmaxStatistics<T>&);

struct MergeStatistics {
  std::int64_t parts = 0, rows = 0;
  const RowStatistics* statistics = nullptr;  ///< [parts, rows]
  RowStatistics* merged = nullptr;            ///< = [rows]
};
void merge_statistics(const Stream&, const MergeStatistics&);

/// Logits of type T, their gradient of type G.
template <class T, class G>
struct SoftmaxGradient {
  std::int64_t rows = 0, classes = 0, first = 0, total_classes = 0;
  float label_smoothing = 0, gradient_scale = 0;
  const T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  const RowStatistics* merged = nullptr;
  G* dlogits = nullptr;           ///< = ; null: not wanted; may be logits where G is T
  std::int32_t* ranks = nullptr;  ///< += [rows]
};
template <class T, class G>
void softmax_gradient(const Stream&, const SoftmaxGradient<T, G>&);

struct SoftmaxSums {
  std::int64_t rows = 0, total_classes = 0;
  float label_smoothing = 0;
  const RowStatistics* merged = nullptr;
  const std::int32_t *labels = nullptr, *ranks = nullptr;
  double* sums = nullptr;  ///< = or += [4]: loss, count, correct at rank 1, correct at rank 5
  bool add = false;
  double* block_sums = nullptr;  ///< workspace: sums of blocks of rows, on a device
};
/// Numbers of its workspace.
std::int64_t softmax_block_sum_count(std::int64_t rows);
void softmax_sums(const Stream&, const SoftmaxSums&);

}  // namespace trireme::kernels
