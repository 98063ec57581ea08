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

}  // namespace trireme::ops
