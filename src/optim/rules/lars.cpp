// SPDX-License-Identifier: Apache-2.0
//
// LARS (You et al. 2017): SGD with a rate for each tensor, from the norms of its weights and of its
// gradient.
#include "trireme/optim/options.hpp"

namespace trireme::optim {

extern constinit const UpdateRule lars{
    .word = "lars",
    .scope = RuleScope::tensor_norm,
    .slots = {"momentum"},
    .keys = {"momentum", "nesterov", "trust_coefficient"},
    .trust =
        [](ops::Context& context, const RuleOptions& options, const ops::TrustRatioArgs& args) {
          ops::lars_trust(context, options.trust_coefficient, args);
        },
    .step = {.op = ops::Op::of_rule("update_lars"), .kernel = kernels::update_lars, .slots = 1}};

}  // namespace trireme::optim
