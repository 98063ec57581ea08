// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "graph.hpp"
#include "ops/dispatch/problem.hpp"

namespace trireme::ops::cuda {

/// Returns the plan of one kind of convolution. Its tensors are input, weight, output (or their
/// gradients). `tfloat32`: float32 products may use the tensor cores. Throws Failure if cuDNN has
/// no engine.
std::unique_ptr<Plan> make_convolution(const PlanTarget& target, Problem::Kind kind,
                                       const Convolution& convolution, bool tfloat32 = false);

/// Returns the plan of a forward convolution that also sums the channels of its output and their
/// squares. Its tensors are input, weight, output and the two float32 vectors. For 16-bit types.
/// Returns null if cuDNN has no engine.
std::unique_ptr<Plan> make_convolution_with_sums(const PlanTarget& target,
                                                 const Convolution& convolution);

}  // namespace trireme::ops::cuda
