// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/keys/fields.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::parallel {

/// Visits the table [parallel].
void visit_keys(keys::Visitor& visitor, ParallelOptions& options);

}  // namespace trireme::parallel
