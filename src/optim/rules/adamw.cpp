// SPDX-License-Identifier: Apache-2.0
//
// AdamW (Loshchilov and Hutter 2019), in PyTorch's form.
#include "trireme/optim/options.hpp"

namespace trireme::optim {

extern constinit const UpdateRule adamw{
    .word = "adamw",
    .slots = {"exp_avg", "exp_avg_sq"},
    .corrects_bias = true,
    .keys = {"beta1", "beta2", "epsilon"},
    .step = {.op = ops::Op::of_rule("update_adamw"), .kernel = kernels::update_adamw, .slots = 2}};

}  // namespace trireme::optim
