// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/keys/fields.hpp"

namespace trireme::keys {

/// One key in written form: table "data.augment", key "flip", TOML value "true".
struct Entry {
  std::string table, key, value;
};

/// Returns the keys of all tables that `visit` declares, in its order. A key whose condition is not
/// met, or whose field writes an empty text, is left out.
std::vector<Entry> entries(const std::function<void(Visitor&)>& visit);

/// Returns the same as TOML text. A table without keys is left out.
std::string write_tables(const std::function<void(Visitor&)>& visit);

}  // namespace trireme::keys
