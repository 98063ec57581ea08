#pragma once

#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops::cpu {

// The columns of a convolution ("im2col"): row by row the inputs under the kernel at one output
// pixel, [B H' W', R R C], zeros on the padding. With them the gradient of the weight [K, R R C] is
// that of a matrix.

/// Whether that is faster than the library's own way to the weight's gradient: depends on the
/// processor and the shape alone.
bool prefers_im2col_gradient(const Convolution& convolution);
/// The layer whose input the columns are.
Linear im2col_layer(const Convolution& convolution);
/// Whether x lies as the columns do: nothing is to be copied.
bool is_im2col_layout(const Convolution& convolution);
/// columns (=) those of x; both in c.dtype.
void im2col(const Convolution& convolution, const Tensor& x, const Tensor& columns);

}  // namespace trireme::ops::cpu
