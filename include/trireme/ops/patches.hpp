// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/image/patches.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

using kernels::PatchRows;

/// Enqueues y [n, row_elements] = the rows of the patches of x [B, height, width, channels] from
/// `first_row` on, in x's dtype. `patch` must divide height and width.
void gather_patches(Context&, const PatchRows&, const Tensor& x, std::int64_t first_row,
                    const Tensor& y);

/// Enqueues y [B, height, width, channels] = the patches of x [B x rows_of_sample, row_elements],
/// in x's dtype; the leading rows of a sample are not read. The adjoint of gather_patches().
void scatter_patches(Context&, const PatchRows&, const Tensor& x, const Tensor& y);

}  // namespace trireme::ops
