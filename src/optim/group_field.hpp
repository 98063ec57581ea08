// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "trireme/keys/fields.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {

/// A choice of the rules with a property.
keys::Field rule_choice(const UpdateRule*& rule,
                        const std::function<bool(const UpdateRule&)>& property);
/// A list of tables, as in [{ match = "fc.*", rate_ratio = 10 }]. If it is empty, it is not
/// written. `rule`: that of the optimizer.
keys::Field parameter_groups(std::vector<ParameterGroup>& groups, const UpdateRule& rule);

}  // namespace trireme::optim
