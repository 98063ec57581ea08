#pragma once

#include "../problem.hpp"

namespace trireme::ops::cuda {

/// An operand of cuBLASLt, which counts matrices by columns: a matrix of ours, row by row, is its
/// transpose to it.
struct Operand {
  enum class Source : std::uint8_t { x, w, y };
  Source source;  ///< of the layer's input, weight and output, or their gradients
  std::int64_t rows = 0, columns = 0;  ///< as it lies, by columns
  bool transposed = false;             ///< its transpose is meant
};

/// result = first second, the turned ones turned.
struct Operands {
  Operand first, second, result;
  DType result_type;
};

/// What a product does beside itself, of the vector and the matrix that go with it
/// (ProductTensors).
enum class Epilogue : std::uint8_t {
  none,
  bias,  ///< forward: the vector is added to each row of the result
  gelu,  ///< forward: the matrix takes the result (with the vector added, where there is one), the
         ///< result its GELU
  gelu_gradient,  ///< backward data: the result is multiplied by GELU's derivative at the matrix
  column_sums     ///< backward weight: the vector takes the sums of the columns of y's gradient
};

/// Whether of a gradient of the weight dy is the first operand; else it is the second.
bool dy_is_first(const Operands& operands);

/// Of y = x w it is asked for y^T = w^T x^T, and likewise of the gradients.
Operands operands_of(Problem::Kind kind, const Linear& linear);

}  // namespace trireme::ops::cuda
