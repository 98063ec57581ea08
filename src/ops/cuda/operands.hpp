#pragma once

#include "../problem.hpp"

namespace trireme::ops::cuda {

/// An operand of cuBLASLt, which counts matrices by columns: a matrix of ours, row by row, is its transpose to it.
struct Operand {
  enum class Of : std::uint8_t { x, w, y };
  Of of;                               ///< of the layer's input, weight and output, or their gradients
  std::int64_t rows = 0, columns = 0;  ///< as it lies, by columns
  bool turned = false;                 ///< its transpose is meant
};

/// result = first second, the turned ones turned.
struct Operands {
  Operand first, second, result;
  DType result_type;
};

/// Of y = x w it is asked for y^T = w^T x^T, and likewise of the gradients.
Operands operands_of(Problem::Kind kind, const Linear& linear);

}  // namespace trireme::ops::cuda
