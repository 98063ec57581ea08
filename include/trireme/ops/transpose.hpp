// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Enqueues y [B, C, R] = x [B, R, C], or y [C, R] = x [R, C], with the last two dimensions
/// exchanged, in one dtype: float32, bfloat16 or float16. y is other memory.
void transpose(Context&, const Tensor& x, const Tensor& y);

}  // namespace trireme::ops
