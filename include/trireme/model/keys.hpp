// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/keys/fields.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

/// Visits the table [model].
void visit_keys(keys::Visitor& visitor, ModelOptions& options);
/// Visits the table [loss].
void visit_keys(keys::Visitor& visitor, LossOptions& options);

}  // namespace trireme::model
