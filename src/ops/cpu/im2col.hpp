// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops::cpu {

// The im2col matrix of a convolution, [B H' W', R R C]: row by row the inputs under the kernel at
// one output pixel, zeros in the padding. With it the gradient of the weight [K, R R C] is that of
// a linear layer.

/// Returns whether im2col is faster than the library's own weight gradient. Depends on the
/// processor and the shape only.
bool prefers_im2col_gradient(const Convolution& convolution);
/// Returns the linear layer whose input is the im2col matrix.
Linear im2col_layer(const Convolution& convolution);
/// Returns whether x already has the layout of the im2col matrix, so that no copy is needed.
bool is_im2col_layout(const Convolution& convolution);
/// Writes columns = the im2col matrix of x, on all threads; returns when it is done. Both have
/// c.dtype.
void im2col(const Convolution& convolution, const Tensor& x, const Tensor& columns);

}  // namespace trireme::ops::cpu
