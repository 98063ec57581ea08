#include "operands.hpp"

#include "trireme/base/error.hpp"

namespace trireme::ops::cuda {

Operands operands_of(Problem::Kind kind, const Linear& l) {
  using Kind = Problem::Kind;
  using Of = Operand::Of;
  const bool out_in = l.order == MatrixOrder::out_in;
  const Operand x{Of::x, l.in, l.rows, false}, y{Of::y, l.out, l.rows, false};
  const Operand w = out_in ? Operand{Of::w, l.in, l.out, false} : Operand{Of::w, l.out, l.in, false};
  const auto turned = [](Operand operand, bool turn = true) {
    operand.turned = turn;
    return operand;
  };
  switch (kind) {
    case Kind::linear_forward: return {turned(w, out_in), x, y, l.result_dtype()};
    case Kind::linear_backward_data: return {turned(w, !out_in), y, x, l.result_dtype()};
    case Kind::linear_backward_weight: return {out_in ? x : y, turned(out_in ? y : x), w, DType::float32};
    default: throw Failure("a product of another kind");
  }
}

bool sums_first(const Operands& operands) { return operands.first.of == Operand::Of::y; }

}  // namespace trireme::ops::cuda
