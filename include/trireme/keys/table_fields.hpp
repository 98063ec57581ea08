// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "trireme/keys/fields.hpp"

namespace trireme::keys {

/// Reads the keys of a table that is itself a value, such as an element of a list. `visit` visits
/// its keys as those of a file. Returns an error message about the first mistake, or "".
std::string read_table(const Table& table, const std::function<void(Visitor&)>& visit);

/// Returns the table as an inline table of TOML that read_table() accepts. Keys whose condition is
/// not met, or whose field writes an empty text, are left out.
std::string write_table(const std::function<void(Visitor&)>& visit);

}  // namespace trireme::keys
