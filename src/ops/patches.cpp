// SPDX-License-Identifier: Apache-2.0
#include "trireme/ops/patches.hpp"

#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Checks what both directions need of images and of rows.
void expect_fit(const PatchRows& shape, const Tensor& images, const Tensor& rows) {
  TRIREME_EXPECT(shape.patch > 0 && shape.height % shape.patch == 0 &&
                 shape.width % shape.patch == 0);
  TRIREME_EXPECT(images.shape ==
                     (Shape{images.shape[0], shape.height, shape.width, shape.channels}) &&
                 rows.shape.back() == shape.row_elements() && images.dtype == rows.dtype &&
                 is_compute_type(rows.dtype));
}

}  // namespace

void gather_patches(Context& context, const PatchRows& shape, const Tensor& x,
                    std::int64_t first_row, const Tensor& y) {
  expect_fit(shape, x, y);
  const std::int64_t rows = y.elements() / shape.row_elements();
  TRIREME_EXPECT(0 <= first_row && first_row + rows <= x.shape[0] * shape.rows_of_sample());
  if (context.counts_only("gather_patches", 2 * y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::gather_patches(context.stream(), shape, first_row, rows, x.as<T>(), y.as<T>());
  });
}

void scatter_patches(Context& context, const PatchRows& shape, const Tensor& x, const Tensor& y) {
  expect_fit(shape, y, x);
  const std::int64_t rows = y.shape[0] * shape.rows_of_sample();
  TRIREME_EXPECT(x.elements() == rows * shape.row_elements());
  if (context.counts_only("scatter_patches", 2 * y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::scatter_patches(context.stream(), shape, rows, x.as<T>(), y.as<T>());
  });
}

}  // namespace trireme::ops
