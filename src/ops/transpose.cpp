// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/transpose.hpp"

#include "ops/dispatch/operand.hpp"
#include "trireme/kernels/transpose.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {

void transpose(Context& context, const Tensor& x, const Tensor& y) {
  if (x.shape.rank() == 2 && y.shape.rank() == 2)
    return transpose(context, x.reshaped({1, x.shape[0], x.shape[1]}),
                     y.reshaped({1, y.shape[0], y.shape[1]}));
  TRIREME_EXPECT(x.shape.rank() == 3 && is_compute_type(x.dtype) &&
                 fits(context, x, x.shape, x.dtype) &&
                 fits(context, y, {x.shape[0], x.shape[2], x.shape[1]}, x.dtype) &&
                 (context.meta() || x.data != y.data));
  if (context.counts_only("transpose", x.bytes() + y.bytes())) return;
  with_element_type(x.dtype, [&]<class T>(T) {
    kernels::transpose(context.stream(), x.shape[0], x.shape[1], x.shape[2], x.as<T>(), y.as<T>());
  });
}

}  // namespace trireme::ops
