#pragma once

#include "library.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops::cpu {

/// The three products of a linear layer, made at the first call of a problem: first and second are
/// x and w, dy and w, and for the gradient of the weight the two in the order that gives the
/// weight's own (dy, x for out_in; x, dy for in_out).
Product& linear_forward(Library& library, const Linear& linear, bool bias);
Product& linear_backward_data(Library& library, const Linear& linear);
Product& linear_backward_weight(Library& library, const Linear& linear, Write write);

}  // namespace trireme::ops::cpu
