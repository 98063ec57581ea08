// SPDX-License-Identifier: Apache-2.0
#include "trireme/keys/value.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include "trireme/keys/fields.hpp"

namespace trireme::keys {

namespace {

const toml::node& node_of(const void* node) { return *static_cast<const toml::node*>(node); }

/// Returns the value of a node of type T, or nothing.
template <class T>
auto value_of(const void* node) {
  const auto* const value = node_of(node).as<T>();
  return value ? std::optional(value->get()) : std::nullopt;
}

}  // namespace

std::optional<bool> Value::boolean() const { return value_of<bool>(node_); }
std::optional<std::int64_t> Value::integer() const { return value_of<std::int64_t>(node_); }
std::optional<std::string> Value::string() const { return value_of<std::string>(node_); }

std::optional<double> Value::number() const {
  return node_of(node_).is_number() ? node_of(node_).value<double>() : std::nullopt;
}

std::optional<std::string> Value::text() const {
  const toml::node& node = node_of(node_);
  if (raw_ && !node.is_string() && !node.is_boolean() && !node.is_array() && !node.is_table())
    return *raw_;
  return string();
}

std::optional<std::vector<Value>> Value::list() const {
  const toml::array* const array = node_of(node_).as_array();
  if (!array) return std::nullopt;
  std::vector<Value> values;
  for (const toml::node& element : *array) values.emplace_back(&element);
  return values;
}

std::optional<Table> Value::table() const {
  const toml::table* const table = node_of(node_).as_table();
  if (!table) return std::nullopt;
  Table values;
  for (const auto& [key, node] : *table) values.emplace(key.str(), Value(&node));
  return values;
}

std::int64_t Value::line() const { return node_of(node_).source().begin.line; }

const char* Value::type_name() const {
  switch (node_of(node_).type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number with a fraction";
    case toml::node_type::boolean: return "a boolean";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time: return "a date or time";
    case toml::node_type::none: break;
  }
  return "nothing";
}

std::string Value::wrong_type(const std::string& wanted) const {
  std::string message = fmt::format("must be {}, not {}", wanted, type_name());
  if (const auto text = string()) return message + fmt::format(" ({})", quoted(*text));
  if (const auto whole = integer()) return message + fmt::format(" ({})", *whole);
  if (const auto real = number()) return message + fmt::format(" ({})", *real);
  if (const auto flag = boolean()) return message + fmt::format(" ({})", *flag);
  return message;
}

}  // namespace trireme::keys
