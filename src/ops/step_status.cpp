// SPDX-License-Identifier: Apache-2.0
//
// Checks and counts the step-status ops and launches their kernels.

#include "trireme/ops/step_status.hpp"

#include "raw_pointer.hpp"

namespace trireme::ops {

void pack_status(Context& context, const PackStatusArgs& args) {
  TRIREME_EXPECT(args.stop_requests >> kernels::num_status_flags == 0);
  context.count(0, static_cast<double>(args.count) * sizeof(SampleSums) + sizeof(StepStatus));
  if (context.meta()) return;
  TRIREME_EXPECT((args.count == 0 || readable(context, args.sums)) &&
                 readable(context, args.status) &&
                 (args.gradient_squares == nullptr || readable(context, args.gradient_squares)));
  kernels::pack_status(context.stream(), args);
}

void read_status(Context& context, const ReadStatusArgs& args) {
  context.count(0, sizeof(StepStatus) + sizeof(StepTotals));
  if (context.meta()) return;
  TRIREME_EXPECT(readable(context, args.status) && readable(context, args.totals));
  kernels::read_status(context.stream(), args);
}

}  // namespace trireme::ops
