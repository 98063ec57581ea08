// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "library.hpp"
#include "trireme/ops/convolution.hpp"

namespace trireme::ops::cpu {

// The three products of a convolution. Each is made at the first call of a problem and cached in
// `library`. Their operands first and second are x and w; dy and w; x and dy. Throws Failure if
// oneDNN has no primitive.
Product& convolution_forward(Library& library, const Convolution& convolution);
Product& convolution_backward_data(Library& library, const Convolution& convolution);
Product& convolution_backward_weight(Library& library, const Convolution& convolution);

}  // namespace trireme::ops::cpu
