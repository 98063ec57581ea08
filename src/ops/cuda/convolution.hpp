#pragma once

#include <memory>

#include "../problem.hpp"
#include "graph.hpp"

namespace trireme::ops::cuda {

/// A kind of convolution; its tensors are input, weight, output (or their gradients). `tfloat32`: float32 may go by the tensor cores. Throws Failure where cuDNN
/// has no engine.
std::unique_ptr<Plan> make_convolution(const PlanTarget& target, Problem::Kind kind, const Convolution& convolution, bool tfloat32 = false);

}  // namespace trireme::ops::cuda
