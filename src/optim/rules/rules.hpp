// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/optim/options.hpp"

namespace trireme::optim {

// Each rule is defined in the file of its name.
extern const UpdateRule sgd, adamw, lars, lamb;
/// All rules, in the order in which documents list them.
inline constexpr const UpdateRule* all_rules[] = {&sgd, &adamw, &lars, &lamb};

}  // namespace trireme::optim
