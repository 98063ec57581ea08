// SPDX-License-Identifier: Apache-2.0
//
// Checks and counts the step-status ops and launches their kernels.

#include "trireme/ops/update/step_status.hpp"

#include "ops/dispatch/raw_pointer.hpp"

namespace trireme::ops {

void pack_status(Context& context, const PackStatusArgs& args) {
  TRIREME_EXPECT(args.stop_requests >> kernels::num_status_flags == 0);
  if (context.counts_only(
          "pack_status", static_cast<double>(args.count) * sizeof(SampleSums) + sizeof(StepStatus)))
    return;
  TRIREME_EXPECT((args.count == 0 || readable(context, args.sums)) &&
                 readable(context, args.status) &&
                 (args.gradient_squares == nullptr || readable(context, args.gradient_squares)));
  kernels::pack_status(context.stream(), args);
}

void read_status(Context& context, const ReadStatusArgs& args) {
  if (context.counts_only("read_status", sizeof(StepStatus) + sizeof(StepTotals))) return;
  TRIREME_EXPECT(readable(context, args.status) && readable(context, args.totals));
  kernels::read_status(context.stream(), args);
}

}  // namespace trireme::ops
