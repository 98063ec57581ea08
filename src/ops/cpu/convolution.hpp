#pragma once

#include "library.hpp"
#include "trireme/ops/convolution.hpp"

namespace trireme::ops::cpu {

/// The three products of a convolution, made at the first call of a problem: first and second are x
/// and w, dy and w, x and dy.
Product& convolution_forward(Library& library, const Convolution& convolution);
Product& convolution_backward_data(Library& library, const Convolution& convolution);
Product& convolution_backward_weight(Library& library, const Convolution& convolution);

}  // namespace trireme::ops::cpu
