// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/linear.hpp"

namespace trireme::ops {

// Operands of a float8 product (docs/design/decisions/0016). A tensor has one scale, computed on
// its device from its own largest magnitude. If Linear::in_float8() is false, the functions return
// the operand unchanged.
//
// On a CUDA device the result holds the codes that cuBLASLt reads. On the CPU it holds the numbers
// that the codes represent, as bfloat16, which represents them exactly.

/// e4m3 for the operands of forward: 4 bits of precision. e5m2 for gradients: 3 bits, but a larger
/// range.
enum class Float8 : std::uint8_t { e4m3, e5m2 };

/// Layout of a tensor of codes (uint8): the scale (kernels::Float8Scale) in these first bytes, then
/// one byte for each number.
constexpr std::int64_t float8_header_bytes = Arena::alignment;

/// Enqueues the conversion of `tensor` (bfloat16 [rows, columns]) and returns the result, which is
/// in the workspace: the caller holds an ArenaScope. `transposed`: the codes are stored column by
/// column.
Tensor float8_operand(Context&, const Linear&, const Tensor& tensor, Float8 kind,
                      bool transposed = false);
/// Returns the weight as a float8 operand. The codes are kept with the weight until it changes.
/// `place` selects the forward or the backward copy, which differ in their storage order.
Weight float8_weight(Context&, const Linear&, const Weight& weight,
                     PreparedWeight::Copy PreparedWeight::* place);

}  // namespace trireme::ops
