// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::keys {

class Value;
/// The values of a table by key, in alphabetical order.
using Table = std::map<std::string, Value, std::less<>>;

/// A value of a TOML file, or of a --set: a view that is valid while its Reader exists.
///
/// Each question about the value returns nothing if the value has another type.
class Value {
 public:
  /// `node`: a toml::node. `raw`: for a value from --set the text after the "="; else null.
  explicit Value(const void* node, const std::string* raw = nullptr) : node_(node), raw_(raw) {}

  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  /// Returns an integer, or a number with a fraction.
  std::optional<double> number() const;
  std::optional<std::string> string() const;
  /// Returns a string. A number or a date from --set also counts as one (--set run.name=2024).
  std::optional<std::string> text() const;
  std::optional<std::vector<Value>> list() const;
  std::optional<Table> table() const;
  /// Returns the text after the "=" of a --set; null for a value of the file.
  const std::string* raw() const { return raw_; }
  /// Returns the line of the file on which the value begins. Without meaning within a --set.
  std::int64_t line() const;

  /// Returns the type in words: "an integer", "a string".
  const char* type_name() const;
  /// Returns "must be an integer, not a string ("256")" for `wanted` = "an integer".
  std::string wrong_type(const std::string& wanted) const;

 private:
  const void* node_;
  const std::string* raw_;
};

/// Returns the value of a key, or null.
inline const Value* find(const Table& table, std::string_view key) {
  const auto place = table.find(key);
  return place == table.end() ? nullptr : &place->second;
}

}  // namespace trireme::keys
