// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/update/step_decision.hpp"  // plain structs that the kernels read
#include "trireme/ops/context.hpp"
#include "trireme/ops/update/step_status.hpp"
#include "trireme/ops/update/update.hpp"

namespace trireme::ops {

// The step decision and the trust ratios of the optimizer. optim's Optimizer calls these functions
// between the backward pass and the update kernels. All pointers are in memory that the context's
// kernels can read (parallel/device_table.hpp). The functions enqueue kernels and do not wait.

using kernels::DecideStepArgs;
using kernels::ListSums;
using kernels::LossScaling;
using kernels::PartialSquareSums;
using kernels::TrustRatioArgs;
using kernels::TrustRatioTensor;

/// Enqueues sums by tensor: each sum adds the values at its own list of indices.
void sum_lists(Context&, const ListSums&);
/// Enqueues the decision to apply or to skip the step, its clip factor, and the learning rate,
/// momentum and bias corrections of each tensor.
void decide_step(Context&, const DecideStepArgs&);
/// Enqueues the trust ratios of LARS: one factor for each trusted tensor, from the norms of weight
/// and gradient (formulas: docs/reference/numerics.md). The decision of the step must be enqueued
/// before.
void lars_trust(Context&, double coefficient, const TrustRatioArgs&);
/// Enqueues the trust ratios of LAMB, from the norms of weight and direction.
void lamb_trust(Context&, const TrustRatioArgs&);

}  // namespace trireme::ops
