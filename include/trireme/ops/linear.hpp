// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/ops/activation.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Storage order of a weight matrix: out_in is PyTorch's Linear [out, in]; in_out is GPT-2's Conv1D
/// [in, out].
enum class MatrixOrder : std::uint8_t { out_in, in_out };

/// The most rows of a matrix product: the libraries count them with 32 bits.
inline constexpr std::int64_t max_rows = 0x7FFFFFFF;

/// A linear layer: y [M, N] = x [M, K] times the weight, plus bias [N] (float32, on CUDA also the
/// layer's dtype; undefined: none). M = rows, K = in, N = out. The weight may be a view of several
/// adjacent parameters, which are then one matrix.
struct Linear {
  std::int64_t rows = 0, in = 0, out = 0;
  MatrixOrder order = MatrixOrder::out_in;
  /// Type of x, weight, y and their gradients, except dw. Sums are float32.
  DType dtype = DType::float32;
  /// The result (y, or dx) is float32 for every dtype: a partial sum that is then reduced over the
  /// tensor group.
  bool float32_result = false;
  /// On CUDA: uses cuBLASLt's first proposal instead of timing several, and no TF32, so that ranks
  /// that compute the same product get the same bits.
  bool fixed_algorithm = false;
  /// bfloat16 only: the operands are rounded to float8 with one scale for each tensor: x and weight
  /// to e4m3, dy to e5m2.
  bool float8 = false;
  /// The tensor cores multiply float8 matrices whose extents are multiples of this. Other products
  /// stay in bfloat16 on every device.
  static constexpr std::int64_t float8_multiple = 16;
  static constexpr bool float8_supports(std::int64_t extent) {
    return extent % float8_multiple == 0;
  }
  /// Returns whether this layer's products are computed in float8.
  bool in_float8() const {
    return float8 && float8_supports(rows) && float8_supports(in) && float8_supports(out);
  }
  DType result_dtype() const { return float32_result ? DType::float32 : dtype; }
  /// Returns the operations of one product, 2 for each multiply-add.
  double flops() const { return 2.0 * rows * in * out; }
  bool operator==(const Linear&) const = default;
};

/// Enqueues y = x times the weight, plus bias.
void linear_forward(Context&, const Linear&, const Tensor& x, const Weight& w, const Tensor& bias,
                    const Tensor& y);
/// Enqueues dx = dy times the weight.
void linear_backward_data(Context&, const Linear&, const Tensor& dy, const Weight& w,
                          const Tensor& dx);
/// Enqueues dw (float32, in the weight's order; undefined: none) = or += the gradient of the
/// weight, and dbias (float32 [N]; undefined: none) = or += the column sums of dy.
void linear_backward_weight(Context&, const Linear&, const Tensor& x, const Tensor& dy,
                            const Tensor& dw, const Tensor& dbias, Write);

// A layer fused with the op that follows it, for devices that do both in one pass over memory.
// Other devices run one op after the other, with the same bits.

/// Enqueues y [M, N] = x times the weight, plus bias (undefined: none), plus residual [M, N]. y
/// must not be residual. Not for layers with float32_result.
void linear_add_forward(Context&, const Linear&, const Tensor& x, const Weight& w,
                        const Tensor& bias, const Tensor& residual, const Tensor& y);

/// Enqueues z [M, N] = x times the weight, plus bias (undefined: none), and y = gelu(z). Backward
/// reads z. Not for layers with float32_result. No device fuses the exact form.
void linear_gelu_forward(Context&, const Linear&, const Tensor& x, const Weight& w,
                         const Tensor& bias, const Tensor& z, const Tensor& y,
                         Gelu form = Gelu::tanh);
/// Enqueues the backward pass of a layer whose x was gelu(z): dz [M, K] = (dy times the weight)
/// times GELU's derivative at z [M, K]. dz must not be z. Not for layers with float32_result.
void linear_backward_data_gelu(Context&, const Linear&, const Tensor& dy, const Weight& w,
                               const Tensor& z, const Tensor& dz, Gelu form = Gelu::tanh);

}  // namespace trireme::ops
