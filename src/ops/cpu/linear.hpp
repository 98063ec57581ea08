// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "library.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops::cpu {

// The three products of a linear layer. Each is made at the first call of a problem and cached in
// `library`. Their operands first and second are x and w; dy and w; and for the weight's gradient
// dy and x if the order is out_in, x and dy if it is in_out. Throws Failure if oneDNN has no
// primitive.
Product& linear_forward(Library& library, const Linear& linear, bool bias);
Product& linear_backward_data(Library& library, const Linear& linear);
Product& linear_backward_weight(Library& library, const Linear& linear, Write write);

}  // namespace trireme::ops::cpu
