#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Softmax cross-entropy of logits [rows, classes]; see ops/loss.hpp for what it computes.
template <class T>
struct CrossEntropy {
  std::int64_t rows = 0, classes = 0;
  float label_smoothing = 0, gradient_scale = 1;
  const T* logits = nullptr;
  const std::int32_t* labels = nullptr;
  T* dlogits = nullptr;               ///< = ; null: not wanted; may be logits
  double* row_losses = nullptr;       ///< workspace [rows]
  std::int32_t* row_ranks = nullptr;  ///< workspace [rows]: place of the label's logit among all,
                                      ///< from 0; -1: the row is missing
  double* sums = nullptr;             ///< = [4]: loss, count, correct at rank 1, correct at rank 5
};
template <class T>
void cross_entropy(const Stream&, const CrossEntropy<T>&);

}  // namespace trireme::kernels
