// SPDX-License-Identifier: Apache-2.0
//
// The step decision and trust ratios: checks pointers, counts bytes and launches the kernels.

#include "trireme/ops/update/step_decision.hpp"

#include "ops/dispatch/raw_pointer.hpp"

namespace trireme::ops {
namespace {

constexpr auto size_of_sum = static_cast<double>(sizeof(double));

/// Counts the trust ratio op: sums of squares of weights and gradients are read, one ratio for each
/// tensor is written.
void count(Context& context, const Op& op, const TrustRatioArgs& args) {
  const double sums = static_cast<double>(args.weight.parts + args.gradient.parts) * size_of_sum;
  context.count(op, static_cast<double>(args.count) *
                        (sums + static_cast<double>(sizeof(TrustRatioTensor) + sizeof(float))));
  TRIREME_EXPECT(args.count == 0 ||
                 (readable(context, args.weight.sums) && readable(context, args.gradient.sums) &&
                  readable(context, args.tensors) && readable(context, args.rates) &&
                  readable(context, args.decision) &&
                  (args.ratios == nullptr || readable(context, args.ratios))));
}

}  // namespace

void sum_lists(Context& context, const ListSums& args) {
  if (context.counts_only("sum_lists",
                          static_cast<double>(args.terms) * (size_of_sum + sizeof(std::int64_t)) +
                              static_cast<double>(args.lists) * size_of_sum))
    return;
  TRIREME_EXPECT(args.terms == 0 ||
                 (readable(context, args.values) && readable(context, args.indices)));
  TRIREME_EXPECT(args.lists == 0 ||
                 (readable(context, args.offsets) && readable(context, args.sums)));
  kernels::sum_lists(context.stream(), args);
}

void decide_step(Context& context, const DecideStepArgs& args) {
  context.count(
      "decide_step",
      static_cast<double>(args.gradient.parts * (args.gradient.tensors + 1)) * size_of_sum +
          static_cast<double>(args.tensors) * static_cast<double>(sizeof(TensorRates)) +
          2 * static_cast<double>(sizeof(StepDecision)));
  if (context.meta()) return;
  TRIREME_EXPECT(readable(context, args.gradient.sums) && readable(context, args.decision) &&
                 (args.tensors == 0 || readable(context, args.rates)));
  TRIREME_EXPECT(args.loss == nullptr || readable(context, args.loss));
  kernels::decide_step(context.stream(), args);
}

void lars_trust(Context& context, double coefficient, const TrustRatioArgs& args) {
  count(context, "lars_trust", args);
  if (!context.meta()) kernels::lars_trust(context.stream(), coefficient, args);
}

void lamb_trust(Context& context, const TrustRatioArgs& args) {
  count(context, "lamb_trust", args);
  if (!context.meta()) kernels::lamb_trust(context.stream(), args);
}

}  // namespace trireme::ops
