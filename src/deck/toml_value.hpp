#pragma once

#include <string>

#include <toml++/toml.h>

namespace trireme::deck {

/// A value as the deck gives it. `raw`: the text after the = of a --set, where it comes from one;
/// else null.
struct TomlValue {
  const toml::node& node;
  const std::string* raw = nullptr;
};

/// "an integer", "a string".
const char* type_name(const toml::node& node);

/// "must be an integer, not a string ("256")", with the remedy where quotes are what is wrong.
std::string wrong_type_message(const char* wanted, const toml::node& node);

}  // namespace trireme::deck
