#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Rows [first_row, first_row + rows) of samples of `context` rows each; see ops/dropout.hpp for
/// the mask.
struct DropoutMask {
  std::int64_t rows = 0, width = 0, first_row = 0, context = 1;
  float probability = 0;
  std::uint64_t key = 0;
  const std::uint64_t* sample_keys = nullptr;  ///< not read at probability 0
};

/// y = x masked and scaled. y may be x.
template <class T>
void dropout(const Stream&, const DropoutMask&, const T* x, T* y);
/// y = (x + bias) masked and scaled, plus residual. bias [width] may be null; y may be residual, or
/// x where their types are one.
template <class From, class To>
void dropout_add(const Stream&, const DropoutMask&, const From* x, const float* bias,
                 const To* residual, To* y);

}  // namespace trireme::kernels
