// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Rotary position embedding (Su et al. 2021) of the first `heads` heads of each row of x [rows,
/// columns].
/// The pair (i, i + head_width / 2) is rotated by position * base^(-2 i / head_width), where
/// position = (first + row) % context.
struct RotaryShape {
  std::int64_t rows = 0, columns = 0, heads = 0, head_width = 0, context = 0;
  double base = 0;
  /// rotate by the negative angle (backward)
  bool inverse = false;
  /// workspace [head_width / 2]: base^(-2 i / head_width)
  double* frequencies = nullptr;
  /// position of row 0
  std::int64_t first = 0;
};
/// Enqueues the rotation of x in place. Reads and writes x once.
template <class T>
void rotary(const Stream&, const RotaryShape&, T* x);

}  // namespace trireme::kernels
