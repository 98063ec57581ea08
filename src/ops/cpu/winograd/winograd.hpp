// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cpu/library.hpp"
#include "trireme/ops/convolution.hpp"

namespace trireme::ops::cpu {

// Convolutions by Winograd's algorithm (winograd_kernel.hpp) as products with a prepared weight.

/// Returns whether the products below exist: 3x3, stride 1, padding 1, float32, and channels that
/// fill pairs of vector registers.
bool supports_winograd(const Convolution& convolution);
/// Returns whether the three products are faster than oneDNN's. Depends on the shape, the batch
/// included, on omp_get_max_threads(), and on the processor that the program was compiled for,
/// which must have AVX-512.
bool prefers_winograd(const Convolution& convolution);

/// Make the products, with the operands of those in convolution.hpp; the batch must not be empty.
/// They use as many threads as omp_get_max_threads() is now.
Product make_winograd_forward(Library& library, const Convolution& convolution);
Product make_winograd_backward_data(Library& library, const Convolution& convolution);
Product make_winograd_backward_weight(Library& library, const Convolution& convolution);

}  // namespace trireme::ops::cpu
