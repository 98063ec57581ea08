// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/patches.hpp"

#include "trireme/ops/element_type.hpp"

namespace trireme::ops {

void gather_patches(Context& context, const PatchRows& shape, const Tensor& x,
                    std::int64_t first_row, const Tensor& y) {
  TRIREME_EXPECT(shape.patch > 0 && shape.height % shape.patch == 0 &&
                 shape.width % shape.patch == 0);
  TRIREME_EXPECT(x.shape == (Shape{x.shape[0], shape.height, shape.width, shape.channels}) &&
                 y.shape.back() == shape.row_elements() && x.dtype == y.dtype &&
                 is_compute_type(y.dtype));
  const std::int64_t rows = y.elements() / shape.row_elements();
  TRIREME_EXPECT(0 <= first_row && first_row + rows <= x.shape[0] * shape.rows_of_sample());
  if (context.counts_only("gather_patches", 2 * y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::gather_patches(context.stream(), shape, first_row, rows, x.as<T>(), y.as<T>());
  });
}

}  // namespace trireme::ops
