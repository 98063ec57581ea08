// SPDX-License-Identifier: Apache-2.0
//
// LAMB (You et al. 2020) with bias correction. Two passes: the trust ratio of a tensor depends on
// the norm of the whole direction of its step.
#include "trireme/optim/options.hpp"

namespace trireme::optim {

extern constinit const UpdateRule lamb{
    .word = "lamb",
    .scope = RuleScope::tensor_norm,
    .slots = {"exp_avg", "exp_avg_sq"},
    .corrects_bias = true,
    .keys = {"beta1", "beta2", "epsilon"},
    .trust = [](ops::Context& context, const RuleOptions&,
                const ops::TrustRatioArgs& args) { ops::lamb_trust(context, args); },
    .direction = {.op = ops::Op::of_rule("lamb_direction"),
                  .kernel = kernels::lamb_direction,
                  .writes_weights = false,
                  .slots = 2},
    .step = {.op = ops::Op::of_rule("update_lamb"), .kernel = kernels::update_lamb}};

}  // namespace trireme::optim
