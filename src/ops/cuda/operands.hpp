// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/dispatch/problem.hpp"

namespace trireme::ops::cuda {

/// An operand for cuBLASLt, which stores matrices by columns: our row-major matrix is the transpose
/// of the library's.
struct Operand {
  enum class Source : std::uint8_t { x, w, y };
  Source source;  ///< the tensor: the layer's input, weight or output, or their gradients
  std::int64_t rows = 0, columns = 0;  ///< in the library's column-major view
  bool transposed = false;             ///< the product uses the transpose
};

/// A product result = first * second, with each operand transposed if it is marked so.
struct Operands {
  Operand first, second, result;
  DType result_type;
};

/// An operation that cuBLASLt fuses into a product. It uses the vector and the matrix of
/// ProductTensors.
enum class Epilogue : std::uint8_t {
  none,
  bias,  ///< forward: the vector is added to each row of the result
  /// forward: the matrix receives the result (plus the vector, if there is one), the result its
  /// GELU
  gelu,
  gelu_gradient,  ///< backward data: the result is multiplied by GELU's derivative at the matrix
  column_sums     ///< backward weight: the vector receives the column sums of y's gradient
};

/// Returns whether dy is the first operand of a weight's gradient; otherwise it is the second.
bool dy_is_first(const Operands& operands);

/// Returns the operands of a product in the library's view: y = x w is requested as y^T = w^T x^T,
/// the gradients likewise.
Operands operands_of(Problem::Kind kind, const Linear& linear);

}  // namespace trireme::ops::cuda
