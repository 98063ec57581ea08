// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// norm [1] = the larger of `floor` and the root of the sum of squares of x [rows, width]. row_sums
/// [rows] are overwritten. The order of the sums depends on the extents only.
void matrix_norm(const Stream&, const float* x, std::int64_t rows, std::int64_t width, float floor,
                 double* row_sums, float* norm);
/// y [count] = x / norm [1], rounded to nearest (float32, bfloat16).
template <class T>
void divide_by_norm(const Stream&, std::int64_t count, const float* x, const float* norm, T* y);

}  // namespace trireme::kernels
