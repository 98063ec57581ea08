// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// The part of a dropout mask for rows [first_row, first_row + rows) of samples of `context` rows
/// each. ops/dropout.hpp defines the mask.
struct DropoutMask {
  std::int64_t rows = 0, width = 0, first_row = 0, context = 1;
  float probability = 0;
  std::uint64_t key = 0;
  /// one per sample; not read if both probabilities are 0
  const std::uint64_t* sample_keys = nullptr;
  /// stochastic depth: the probability that all elements of a sample are dropped, and its key
  float path_probability = 0;
  std::uint64_t path_key = 0;
};

/// y = x masked and scaled. y may be x. Backward is the same call on gradients.
template <class T>
void dropout(const Stream&, const DropoutMask&, const T* x, T* y);
/// y = (x + bias) masked and scaled, plus residual. bias [width] may be null. y may be residual, or
/// x if both have one type.
template <class From, class To>
void dropout_add(const Stream&, const DropoutMask&, const From* x, const float* bias,
                 const To* residual, To* y);

}  // namespace trireme::kernels
