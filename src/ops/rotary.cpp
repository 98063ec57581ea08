// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/rotary.hpp"

#include "trireme/kernels/rotary.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {

void rotary(Context& context, const Rotary& op, const Tensor& x, bool inverse) {
  TRIREME_EXPECT(op.head_width % 2 == 0 && op.heads * op.head_width <= op.columns &&
                 op.context > 0 && op.first >= 0);
  TRIREME_EXPECT(x.defined() && x.shape.back() == op.columns &&
                 x.elements() == op.rows * op.columns && x.dtype == op.dtype &&
                 x.device == context.stream().device.kind);
  context.count("rotary",
                2.0 * static_cast<double>(op.rows * op.heads * op.head_width * size_of(op.dtype)));
  // Workspace: the frequencies base^(-2 i / head_width) in double precision.
  const ArenaScope scope(context.workspace());
  const Tensor frequencies = context.workspace().allocate(DType::float64, {op.head_width / 2});
  if (context.meta()) return;
  const kernels::RotaryShape shape{op.rows,    op.columns, op.heads, op.head_width,
                                   op.context, op.base,    inverse,  frequencies.as<double>(),
                                   op.first};
  with_element_type(op.dtype,
                    [&]<class T>(T) { kernels::rotary(context.stream(), shape, x.as<T>()); });
}

}  // namespace trireme::ops
