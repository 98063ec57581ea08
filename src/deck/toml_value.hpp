// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <toml++/toml.h>

namespace trireme::deck {

/// A value of the deck. For a value from --set, `raw` is the text after the "="; else it is null.
struct TomlValue {
  const toml::node& node;
  const std::string* raw = nullptr;
};

/// Returns the text of a string value. A number or a date from --set also counts as a string
/// (--set run.name=2024). Returns nothing for other types.
std::optional<std::string> string_value(const TomlValue& given);

/// Returns the TOML type in words: "an integer", "a string".
const char* type_name(const toml::node& node);

/// Returns "must be an integer, not a string ("256")".
std::string wrong_type_message(const char* wanted, const toml::node& node);

}  // namespace trireme::deck
