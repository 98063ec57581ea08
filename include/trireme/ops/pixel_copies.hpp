// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/convolution.hpp"

namespace trireme::ops {

// Images that have each pixel of another image once or several times, in one dtype: float32,
// bfloat16 or float16. Gradients are sums in float32 in row-major order of the copies. Results are
// other memory.

/// Enqueues y [B, H + rows, W + columns, C] = x [B, H, W, C] with rows and columns of the opposite
/// edges in front and behind. `padding` is at most H and W on a side.
void periodic_pad_forward(Context&, const Padding& padding, const Tensor& x, const Tensor& y);
/// Enqueues dx = for each pixel the sum of dy over its copies [+ addend]. `addend` has the type and
/// shape of dx; undefined: none.
void periodic_pad_backward(Context&, const Padding& padding, const Tensor& dy, const Tensor& addend,
                           const Tensor& dx);

/// Enqueues y [B, factor H, factor W, C] = each pixel of x [B, H, W, C] factor x factor times.
void upsample_forward(Context&, std::int64_t factor, const Tensor& x, const Tensor& y);
/// Enqueues dx = for each pixel the sum of dy over its copies.
void upsample_backward(Context&, std::int64_t factor, const Tensor& dy, const Tensor& dx);

}  // namespace trireme::ops
