#pragma once

#include "library.hpp"
#include "trireme/ops/convolution.hpp"

namespace trireme::ops::cpu {

// Convolutions by Winograd's algorithm (winograd_kernel.hpp) as products with a prepared weight.

/// Returns whether the products below exist: 3x3, stride 1, padding 1, float32, and channels that
/// fill pairs of vector registers.
bool supports_winograd(const Convolution& convolution);
/// Returns whether forward and the gradient of the input are faster than oneDNN's. Depends on the
/// processor and the shape of one image only.
bool prefers_winograd(const Convolution& convolution);
/// The same for the weight's gradient. Its sums run over the batch, which must have enough tiles.
bool prefers_winograd_gradient(const Convolution& convolution);

/// Make the products, with the operands of those in convolution.hpp. They use as many threads as
/// omp_get_max_threads() is now.
Product make_winograd_forward(Library& library, const Convolution& convolution);
Product make_winograd_backward_data(Library& library, const Convolution& convolution);
Product make_winograd_backward_weight(Library& library, const Convolution& convolution);

}  // namespace trireme::ops::cpu
