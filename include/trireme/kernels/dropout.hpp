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
  /// one per sample; not read if probability is 0
  const std::uint64_t* sample_keys = nullptr;
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
