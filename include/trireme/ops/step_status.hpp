#pragma once

#include "trireme/kernels/step_status.hpp"  // plain structs that the kernels read
#include "trireme/ops/context.hpp"

namespace trireme::ops {

// What pointers point to lies where the context's kernels run. Nothing waits for the host.

using kernels::PackStatusArgs;
using kernels::ReduceStatusArgs;
using kernels::SampleSums;
using kernels::StepStatus;

/// What this rank tells all others of a step, from the sums of its micro-batches.
void pack_status(Context&, const PackStatusArgs&);
/// The sums of a whole step, from what the ranks that know a part have told.
void reduce_status(Context&, const ReduceStatusArgs&);

}  // namespace trireme::ops
