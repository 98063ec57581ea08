// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/keys/fields.hpp"
#include "trireme/plan/machine/machine.hpp"

namespace trireme::plan {

/// Returns whether a machine has a table, as in "links.network". Keys that must be given are
/// required in these tables only.
using HasTable = std::function<bool(const std::string& table)>;

/// Visits all tables and keys of a machine file, to read or to write them.
void visit(keys::Visitor& visitor, Machine& machine, const HasTable& has_table);

/// Returns all tables of efficiencies as "type.op": those of every op, and the classes.
const std::vector<std::string>& efficiency_names();
/// Returns all tables of measured collectives.
const std::vector<std::string>& collective_names();

}  // namespace trireme::plan
