// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Steps of the iteration, and its coefficients (Jordan et al. 2024).
inline constexpr int newton_schulz_steps = 5;
inline constexpr float newton_schulz[] = {3.4445f, -4.7750f, 2.0315f};

/// Enqueues the replacement of a matrix [rows, columns] (float32) by about the nearest matrix with
/// orthonormal rows or columns: all its singular values become about 1 (0.7 to 1.2), zeros stay 0.
///
/// X = matrix / max(norm, 1e-7), then five times X = a X + (b G + c G G) X with G = X X^T; a matrix
/// with more rows than columns is transposed. `dtype`, float32 or bfloat16, is that of X and G;
/// products are summed in float32. The same matrix gives the same bits on every rank with the same
/// device and number of threads, since no algorithm is chosen by its time.
void orthogonalize(Context&, const Tensor& matrix, DType dtype);
/// Returns the operations of its products, 2 for each multiply-add.
double orthogonalize_flops(std::int64_t rows, std::int64_t columns);

}  // namespace trireme::ops
