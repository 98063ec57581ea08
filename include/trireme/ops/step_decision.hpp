#pragma once

#include "trireme/kernels/step_decision.hpp"  // plain structs that the kernels read
#include "trireme/ops/context.hpp"
#include "trireme/ops/step_status.hpp"
#include "trireme/ops/update.hpp"

namespace trireme::ops {

// What pointers point to lies where the context's kernels run (parallel/device_table.hpp). Nothing
// waits for the host.

using kernels::DecideStepArgs;
using kernels::ListSums;
using kernels::LossScaling;
using kernels::PartialSquareSums;
using kernels::TrustRatioArgs;
using kernels::TrustRatioTensor;

/// Sums by tensor of sums of rows: a list of places each.
void sum_lists(Context&, const ListSums&);
/// The judgement of a step and the learning rate of its update, ahead of the update.
void decide_step(Context&, const DecideStepArgs&);
/// The trust ratios of an update that has been judged. Formulas: docs/contract section 7.
void lars_trust(Context&, double coefficient, const TrustRatioArgs&);
void lamb_trust(Context&, const TrustRatioArgs&);

}  // namespace trireme::ops
