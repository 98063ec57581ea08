// Checks and counts the step-status ops and launches their kernels.

#include "trireme/ops/step_status.hpp"

#include "raw_pointer.hpp"

namespace trireme::ops {

void pack_status(Context& context, const PackStatusArgs& args) {
  context.count(0, static_cast<double>(args.count) * sizeof(SampleSums) + sizeof(StepStatus));
  if (context.meta()) return;
  TRIREME_EXPECT((args.count == 0 || readable(context, args.sums)) &&
                 readable(context, args.status) &&
                 (args.gradient_squares == nullptr || readable(context, args.gradient_squares)));
  kernels::pack_status(context.stream(), args);
}

void reduce_status(Context& context, const ReduceStatusArgs& args) {
  context.count(0, static_cast<double>(args.count + 1) * sizeof(SampleSums) +
                       static_cast<double>(args.ranks) * sizeof(std::uint64_t));
  if (context.meta()) return;
  TRIREME_EXPECT(args.count > 0 && args.step > 0 && readable(context, args.statuses) &&
                 readable(context, args.sums));
  kernels::reduce_status(context.stream(), args);
}

}  // namespace trireme::ops
