#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// How a weight matrix is stored: out_in is PyTorch's linear [out, in]; in_out is GPT-2's Conv1D
/// [in, out].
enum class MatrixOrder : std::uint8_t { out_in, in_out };

/// y [M, N] = x [M, K] times the weight, plus bias [N] (float32; undefined: none). The weight may
/// be a view of several parameters that lie one behind the other: it is one matrix.
struct Linear {
  std::int64_t rows = 0, in = 0, out = 0;
  MatrixOrder order = MatrixOrder::out_in;
  DType dtype =
      DType::float32;  ///< of x, weight and y and their gradients but for dw; sums are float32
  bool float32_result = false;  ///< the result (y, or dx) is float32 whatever dtype is: a partial
                                ///< sum over the tensor group
  bool float8 = false;  ///< of bfloat16: what is multiplied is rounded to float8, x and weight to
                        ///< e4m3, dy to e5m2, each by one scale for the tensor
  /// What the tensor cores take of float8. Products of other extents are in bfloat16, on every
  /// device.
  static constexpr std::int64_t float8_multiple = 16;
  static constexpr bool float8_supports(std::int64_t extent) {
    return extent % float8_multiple == 0;
  }
  bool in_float8() const {
    return float8 && float8_supports(rows) && float8_supports(in) && float8_supports(out);
  }
  DType result_dtype() const { return float32_result ? DType::float32 : dtype; }
  double flops() const { return 2.0 * rows * in * out; }
  bool operator==(const Linear&) const = default;
};

void linear_forward(Context&, const Linear&, const Tensor& x, const Weight& w, const Tensor& bias,
                    const Tensor& y);
/// dx = dy times the weight.
void linear_backward_data(Context&, const Linear&, const Tensor& dy, const Weight& w,
                          const Tensor& dx);
/// dw (float32, in the weight's order) = or +=; dbias (float32 [N]; undefined: none) = or += the
/// column sums of dy.
void linear_backward_weight(Context&, const Linear&, const Tensor& x, const Tensor& dy,
                            const Tensor& dw, const Tensor& dbias, Write);

// A layer and what stands behind it, for the device that does both in one pass over memory; on the
// others one op after the other, the same bits.

/// y [M, N] = x times the weight, plus bias (undefined: none), plus residual [M, N]; y may not be
/// residual. Not `wide`.
void linear_add_forward(Context&, const Linear&, const Tensor& x, const Weight& w,
                        const Tensor& bias, const Tensor& residual, const Tensor& y);

/// z [M, N] = x times the weight, plus bias (undefined: none); y = gelu(z) (activation.hpp).
/// Backward reads z. Not `wide`.
void linear_gelu_forward(Context&, const Linear&, const Tensor& x, const Weight& w,
                         const Tensor& bias, const Tensor& z, const Tensor& y);
/// Of the layer whose x was gelu(z): dz [M, K] = (dy times the weight) times the derivative at z
/// [M, K]; dz may not be z. Not `wide`.
void linear_backward_data_gelu(Context&, const Linear&, const Tensor& dy, const Weight& w,
                               const Tensor& z, const Tensor& dz);

}  // namespace trireme::ops
