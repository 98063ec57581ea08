// SPDX-License-Identifier: Apache-2.0
//
// SGD with momentum, in PyTorch's form. Weight decay is added to the gradient.
#include "trireme/optim/options.hpp"

namespace trireme::optim {

extern const UpdateRule lars;

extern constinit const UpdateRule sgd{.word = "sgd",
                                      .slots = {"momentum"},
                                      .slots_are_momentum = true,
                                      .keys = {"momentum", "nesterov"},
                                      .rule_of_large_batches = &lars,
                                      .step = {.op = ops::Op::of_rule("update_sgd"),
                                               .kernel = kernels::update_sgd,
                                               .slots = 1,
                                               .slots_optional = true}};

}  // namespace trireme::optim
