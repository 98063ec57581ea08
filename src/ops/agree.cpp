#include "trireme/ops/agree.hpp"

#include "raw_pointer.hpp"

namespace trireme::ops {

void pack_status(Context& context, const Tell& args) {
  context.count(0, static_cast<double>(args.count) * sizeof(SampleSums) + sizeof(StepMessage));
  if (context.meta()) return;
  TRIREME_EXPECT((args.count == 0 || readable(context, args.sums)) &&
                 readable(context, args.message));
  kernels::tell(context.stream(), args);
}

void reduce_status(Context& context, const Join& args) {
  context.count(0, static_cast<double>(args.count + 1) * sizeof(SampleSums));
  if (context.meta()) return;
  TRIREME_EXPECT(args.count > 0 && args.step > 0 && readable(context, args.messages) &&
                 readable(context, args.sums));
  kernels::join(context.stream(), args);
}

}  // namespace trireme::ops
