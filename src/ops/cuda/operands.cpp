#include "operands.hpp"

#include "trireme/base/error.hpp"

namespace trireme::ops::cuda {

using Kind = Problem::Kind;
using Of = Operand::Of;

namespace {

/// The tensor cores read float8 along what is added up: the first operand is turned, the second is
/// not, and whatever lies otherwise has been turned before.
Operands float8_operands_of(Problem::Kind kind, const Linear& l) {
  const bool out_in = l.order == MatrixOrder::out_in;
  const auto by = [](Of of, std::int64_t inner, std::int64_t outer, bool turned) {
    return Operand{of, inner, outer, turned};
  };
  switch (kind) {
    case Kind::linear_forward:
      return {by(Of::w, l.in, l.out, true),
              by(Of::x, l.in, l.rows, false),
              {Of::y, l.out, l.rows},
              l.result_dtype()};
    case Kind::linear_backward_data:
      return {by(Of::w, l.out, l.in, true),
              by(Of::y, l.out, l.rows, false),
              {Of::x, l.in, l.rows},
              l.result_dtype()};
    case Kind::linear_backward_weight:
      if (out_in)
        return {by(Of::x, l.rows, l.in, true),
                by(Of::y, l.rows, l.out, false),
                {Of::w, l.in, l.out},
                DType::float32};
      return {by(Of::y, l.rows, l.out, true),
              by(Of::x, l.rows, l.in, false),
              {Of::w, l.out, l.in},
              DType::float32};
    default: throw Failure("a product of another kind");
  }
}

}  // namespace

Operands operands_of(Problem::Kind kind, const Linear& l) {
  if (l.in_float8()) return float8_operands_of(kind, l);
  const bool out_in = l.order == MatrixOrder::out_in;
  const Operand x{Of::x, l.in, l.rows, false}, y{Of::y, l.out, l.rows, false};
  const Operand w =
      out_in ? Operand{Of::w, l.in, l.out, false} : Operand{Of::w, l.out, l.in, false};
  const auto turned = [](Operand operand, bool turn = true) {
    operand.turned = turn;
    return operand;
  };
  switch (kind) {
    case Kind::linear_forward: return {turned(w, out_in), x, y, l.result_dtype()};
    case Kind::linear_backward_data: return {turned(w, !out_in), y, x, l.result_dtype()};
    case Kind::linear_backward_weight:
      return {out_in ? x : y, turned(out_in ? y : x), w, DType::float32};
    default: throw Failure("a product of another kind");
  }
}

bool sums_first(const Operands& operands) { return operands.first.of == Operand::Of::y; }

}  // namespace trireme::ops::cuda
