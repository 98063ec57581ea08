// SPDX-License-Identifier: Apache-2.0
//
// Maps our row-major products to cuBLASLt's column-major ones.

#include "operands.hpp"

#include "trireme/base/error.hpp"

namespace trireme::ops::cuda {

using Kind = Problem::Kind;
using Source = Operand::Source;

namespace {

/// Returns the operands of a float8 product. The tensor cores read float8 along the summed
/// dimension, so the first operand is transposed and the second is not. The codes of other operands
/// were transposed before.
Operands float8_operands_of(Problem::Kind kind, const Linear& l) {
  const bool out_in = l.order == MatrixOrder::out_in;
  const auto make_operand = [](Source of, std::int64_t inner, std::int64_t outer, bool transposed) {
    return Operand{of, inner, outer, transposed};
  };
  switch (kind) {
    case Kind::linear_forward:
      return {make_operand(Source::w, l.in, l.out, true),
              make_operand(Source::x, l.in, l.rows, false),
              {Source::y, l.out, l.rows},
              l.result_dtype()};
    case Kind::linear_backward_data:
      return {make_operand(Source::w, l.out, l.in, true),
              make_operand(Source::y, l.out, l.rows, false),
              {Source::x, l.in, l.rows},
              l.result_dtype()};
    case Kind::linear_backward_weight:
      if (out_in)
        return {make_operand(Source::x, l.rows, l.in, true),
                make_operand(Source::y, l.rows, l.out, false),
                {Source::w, l.in, l.out},
                DType::float32};
      return {make_operand(Source::y, l.rows, l.out, true),
              make_operand(Source::x, l.rows, l.in, false),
              {Source::w, l.out, l.in},
              DType::float32};
    default: throw Failure("internal error: unexpected kind of product");
  }
}

}  // namespace

Operands operands_of(Problem::Kind kind, const Linear& l) {
  if (l.in_float8()) return float8_operands_of(kind, l);
  const bool out_in = l.order == MatrixOrder::out_in;
  const Operand x{Source::x, l.in, l.rows, false}, y{Source::y, l.out, l.rows, false};
  const Operand w =
      out_in ? Operand{Source::w, l.in, l.out, false} : Operand{Source::w, l.out, l.in, false};
  const auto transposed = [](Operand operand, bool transpose = true) {
    operand.transposed = transpose;
    return operand;
  };
  switch (kind) {
    case Kind::linear_forward: return {transposed(w, out_in), x, y, l.result_dtype()};
    case Kind::linear_backward_data: return {transposed(w, !out_in), y, x, l.result_dtype()};
    case Kind::linear_backward_weight:
      return {out_in ? x : y, transposed(out_in ? y : x), w, DType::float32};
    default: throw Failure("internal error: unexpected kind of product");
  }
}

bool dy_is_first(const Operands& operands) { return operands.first.source == Operand::Source::y; }

}  // namespace trireme::ops::cuda
