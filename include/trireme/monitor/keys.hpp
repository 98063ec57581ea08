// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/keys/fields.hpp"
#include "trireme/monitor/options.hpp"

namespace trireme::monitor {

/// Visits the table [monitor].
void visit_keys(keys::Visitor& visitor, MonitorOptions& options);

}  // namespace trireme::monitor
