#pragma once

#include "trireme/ops/linear.hpp"

namespace trireme::ops {

// Operands of a product in float8 (docs/decisions/0016): of a whole tensor one scale, found from
// its own largest magnitude where it lies. Without Linear::in_float8() an operand is what it was.
// On a CUDA device it is its codes, as cuBLASLt reads them there; where the processor multiplies,
// the numbers that the codes stand for, as bfloat16, which holds them exactly.

/// e4m3: what forward reads, 4 bits of precision; e5m2: gradients, 3 bits and more range.
enum class Float8 : std::uint8_t { e4m3, e5m2 };

/// Codes are uint8: the scale (kernels::Float8Scale), and from here on a byte a number.
constexpr std::int64_t float8_header_bytes = Arena::alignment;

/// In the workspace, where the caller has a scope. `tensor` is bfloat16 [rows, columns]; `turned`:
/// codes lie column by column.
Tensor float8_operand(Context&, const Linear&, const Tensor& tensor, Float8 kind,
                      bool transposed = false);
/// Codes are kept with the weight until it changes; `place` says which way they are read.
Weight float8_weight(Context&, const Linear&, const Weight& weight,
                     PreparedWeight::Copy PreparedWeight::* place);

}  // namespace trireme::ops
