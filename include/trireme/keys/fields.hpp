// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/keys/value.hpp"

namespace trireme::keys {

/// The reader, the writer and the description of one key's value. Reader and writer refer to the
/// option that the key sets.
struct Field {
  /// Stores the value in the option. Returns an error message that names the valid values, or an
  /// empty string.
  std::function<std::string(const Value&)> read = {};
  /// Returns the option as TOML, or an empty string if the key is to be left out.
  std::function<std::string()> write = {};
  /// The type of a valid value in words ("integer") and its range or choices ("at least 1").
  std::string type = {}, range = {};
  /// The option as TOML if write() leaves it out although it has a value.
  std::string omitted_value = {};
};

/// The condition under which a key has an effect, as in
/// {kind == sgd, "kind = \"sgd\"", "optimizer.kind"}. The texts are empty for keys without one.
struct AppliesTo {
  bool is_met = true;
  const char* condition = "";
  /// The path of the key that decides. While it has a mistake, the condition is unknown.
  const char* decided_by = "";
};

/// One key of a table.
struct Key {
  const char* name;
  /// The effect of the key, in one sentence of at most 25 words; `trireme check --keys` prints it.
  const char* meaning;
  AppliesTo applies_to = {};
  /// Advice for a missing key ("name the folder of ..."); null: the key has a default.
  const char* missing_advice = nullptr;
  /// The valid values depend on the key that decides. If that is wrong, this value is not checked.
  bool value_depends_on_decider = false;
};

/// Visits all tables and keys of a file, to read them or to write them. Each key is declared once,
/// in the library that it concerns.
class Visitor {
 public:
  virtual ~Visitor() = default;
  /// Starts a table, as in "data.augment". The keys that follow belong to it.
  virtual void table(const char* path) = 0;
  /// Visits one key of the current table.
  virtual void field(const Key& key, const Field& field) = 0;
};

/// An interval of valid numbers.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity(),
         max = std::numeric_limits<double>::infinity();
  /// An open bound is itself invalid.
  bool min_open = false, max_open = false;

  bool contains(double value) const {
    return (min_open ? value > min : value >= min) && (max_open ? value < max : value <= max);
  }
  /// Returns the valid range in words: "at least 0 and below 1". An upper bound that is only the
  /// limit of the type is left out, unless `value` violates it.
  std::string requirement(double value) const;
  /// Returns "1.5 is out of range; must be at least 0 and below 1".
  std::string range_error(double value) const;
};
inline NumberRange at_least(double min) { return {.min = min}; }
inline NumberRange above(double min) { return {.min = min, .min_open = true}; }
/// Returns the half-open interval [min, max).
inline NumberRange half_open(double min, double max) {
  return {.min = min, .max = max, .max_open = true};
}
inline NumberRange between(double min, double max) { return {.min = min, .max = max}; }

/// Returns the text as a TOML string in double quotes.
std::string quoted(const std::string& text);
/// Returns the number as a TOML float: with a point or an exponent.
std::string toml_float(double value);

// Fields by type of value. Each keeps a reference to its option, which must outlive the field.
Field flag(bool& value);
Field real(double& value, NumberRange range);
/// An optional number. If it is missing, it is not written.
Field optional_real(std::optional<double>& value, NumberRange range);
/// A string that is not empty. `check` returns an error message, or an empty string.
Field text(std::string& value, std::function<std::string(const std::string&)> check = {});
/// An optional string, such as a folder. If it is empty, it is not written.
Field optional_text(std::string& value);
/// A list of numbers of the range, at most `max_numbers`, each more than the one before if
/// `ascending`. If it is empty, it is not written.
Field numbers(std::vector<double>& values, NumberRange range, std::size_t max_numbers,
              bool ascending);

/// An integer option behind a getter and a setter; integer() wraps it for any integer type.
Field integer_of(std::function<std::int64_t()> get, std::function<void(std::int64_t)> set,
                 NumberRange range);
template <class T>
Field integer(T& value, NumberRange range) {
  constexpr double largest =
      sizeof(T) < 8 ? static_cast<double>(std::numeric_limits<T>::max()) : 0x1p62;
  if (range.max > largest) range.max = largest;
  return integer_of([&value] { return static_cast<std::int64_t>(value); },
                    [&value](std::int64_t given) { value = static_cast<T>(given); }, range);
}
/// Returns `field`, changed so that write() leaves the key out if the option has its usual value.
template <class T>
Field omitted_if_default(const T& value, T usual, Field field) {
  if (value == usual) field.omitted_value = field.write();
  field.write = [&value, usual, write = std::move(field.write)] {
    return value == usual ? std::string() : write();
  };
  return field;
}
/// Returns `field`, changed so that write() leaves the key out if `left_out`.
inline Field left_out_if(bool left_out, Field field) {
  if (left_out) field.write = [] { return std::string(); };
  return field;
}
/// An optional integer. 0 means that it is missing, and then it is not written.
template <class T>
Field optional_integer(T& value, NumberRange range) {
  Field field = omitted_if_default(value, T{0}, integer(value, range));
  field.omitted_value.clear();
  return field;
}
/// A choice of words by index; choice() wraps it for enums.
Field choice_of(std::vector<std::string> names, std::function<std::size_t()> get,
                std::function<void(std::size_t)> set);
/// One word out of a list.
template <class T>
Field choice(T& value, std::vector<std::pair<std::string, T>> choices) {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) names.push_back(name);
  const auto get = [&value, choices] {
    std::size_t index = 0;
    while (index + 1 < choices.size() && !(choices[index].second == value)) ++index;
    return index;
  };
  return choice_of(std::move(names), get,
                   [&value, choices](std::size_t index) { value = choices[index].second; });
}

/// Two numbers of the range, the lower one first, as in [0.85, 0.95].
Field number_pair(std::array<double, 2>& values, NumberRange range);
/// A power of two: other factors would round the numbers that they scale.
Field power_of_two(double& value, NumberRange range);
/// "auto" (0) or an integer of the range.
Field automatic_integer(int& value, NumberRange range);
/// One integer out of a list of choices.
Field one_of(int& value, std::vector<int> choices);

/// The units that a duration may have: counts (epochs, steps, samples, tokens), times, or both.
enum class DurationUnits : std::uint8_t { counts, times, counts_or_times };
/// A duration in quotes, as in "10 epochs". `positive`: zero is rejected.
Field duration(Duration& value, DurationUnits units, bool positive);
/// A duration or "none".
Field optional_duration(std::optional<Duration>& value, DurationUnits units, bool positive);
/// A list of durations, each more than 0. If it is empty, it is not written.
Field durations(std::vector<Duration>& values, DurationUnits units);

// For fields of other libraries.
/// Returns the error message for a value that is not a number in the range. A --set value too large
/// for a TOML number arrives as a string, so its size is checked here.
std::string wrong_number(const char* wanted, const Value& given, const NumberRange& range);
/// Parses a duration. Returns an error message, or stores it in `value` and returns "".
std::string read_duration(const std::string& text, DurationUnits units, bool positive,
                          Duration& value);
/// Returns the valid units and numbers of a duration in words.
std::string describe_range(DurationUnits units, bool positive);
/// Returns the whole number of at most nine digits in `text`, or 0 if it is none.
int parse_count(std::string_view text);
/// Returns the words in quotes, with commas between them.
std::string quoted_list(const std::vector<std::string>& words);
/// Returns the error message for a word that is not among `names`. The closest one is suggested.
std::string unknown_choice(const std::string& given, const std::vector<std::string>& names);

}  // namespace trireme::keys
