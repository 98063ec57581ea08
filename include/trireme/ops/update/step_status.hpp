// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/update/step_status.hpp"  // plain structs that the kernels read
#include "trireme/ops/context.hpp"

namespace trireme::ops {

// The status that the ranks add once a step: loss sums and stop requests. train's StatusExchange
// calls both functions. All pointers are in memory that the context's kernels can read. The
// functions enqueue a kernel and do not wait.

using kernels::PackStatusArgs;
using kernels::ReadStatusArgs;
using kernels::SampleSums;
using kernels::StepStatus;
using kernels::StepTotals;

/// Enqueues the kernel that fills this rank's status of the step from the sums of its
/// micro-batches.
void pack_status(Context&, const PackStatusArgs&);
/// Enqueues the kernel that reads the sum of all ranks' statuses.
void read_status(Context&, const ReadStatusArgs&);

}  // namespace trireme::ops
