// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/checkpoint/options.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::checkpoint {

/// Visits the table [checkpoint].
void visit_keys(keys::Visitor& visitor, CheckpointOptions& options);

}  // namespace trireme::checkpoint
