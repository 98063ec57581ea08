#pragma once

#include <memory>

#include "../problem.hpp"
#include "graph.hpp"

namespace trireme::ops::cuda {

/// A kind of convolution; its tensors are input, weight, output (or their gradients). `tfloat32`:
/// float32 may go by the tensor cores. Throws Failure where cuDNN has no engine.
std::unique_ptr<Plan> make_convolution(const PlanTarget& target, Problem::Kind kind,
                                       const Convolution& convolution, bool tfloat32 = false);

/// A convolution forward that adds up the channels of its output and their squares; its tensors are
/// input, weight, output, and the two float32 vectors. For 16 bit types. Empty where cuDNN has no
/// engine.
std::unique_ptr<Plan> make_convolution_with_sums(const PlanTarget& target,
                                                 const Convolution& convolution);

}  // namespace trireme::ops::cuda
