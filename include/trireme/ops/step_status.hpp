#pragma once

#include "trireme/kernels/step_status.hpp"  // plain structs that the kernels read
#include "trireme/ops/context.hpp"

namespace trireme::ops {

// The status that the ranks exchange once a step: loss sums, stop requests and busy seconds.
// train's StatusExchange calls both functions. All pointers are in memory that the context's
// kernels can read. The functions enqueue a kernel and do not wait.

using kernels::PackStatusArgs;
using kernels::ReduceStatusArgs;
using kernels::SampleSums;
using kernels::StepStatus;

/// Enqueues the kernel that fills this rank's message of the step from the sums of its
/// micro-batches.
void pack_status(Context&, const PackStatusArgs&);
/// Enqueues the kernel that adds the sums of the messages of the ranks at the last pipeline stage.
void reduce_status(Context&, const ReduceStatusArgs&);

}  // namespace trireme::ops
