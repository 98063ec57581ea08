#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/monitor/options.hpp"
#include "trireme/parallel/options.hpp"
#include "trireme/train/options.hpp"

namespace trireme::deck {

/// A value as the deck gives it (given.hpp).
struct TomlValue;

/// How the value of one key is read into its option and written back.
struct Field {
  /// Takes the value. Gives what is wrong with it and what would be right, or nothing.
  std::function<std::string(const TomlValue&)> read;
  /// The option as TOML; empty where the key is left out.
  std::function<std::string()> write;
};

/// The choice of another key under which a key exists: {kind == sgd, "kind = \"sgd\""}.
struct AppliesTo {
  bool is_met = true;
  const char* condition = "";
};

struct Key {
  const char* name;
  AppliesTo applies_to = {};
  const char* missing_advice =
      nullptr;  ///< what to write where the key is missing; null: it has a default
  bool value_depends_on_kind = false;  ///< which values are right depends on the table's kind, so
                                       ///< none is judged where that is wrong
};

/// Goes over the tables and keys of a deck, each declared once in tables.cpp: to read them, or to
/// write them back.
class Visitor {
 public:
  virtual ~Visitor() = default;
  /// The keys that follow belong to this table, "data.augment".
  virtual void table(const char* path) = 0;
  virtual void field(const Key& key, const Field& field) = 0;
};

/// Which numbers are right.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity(),
         max = std::numeric_limits<double>::infinity();
  bool min_open = false, max_open = false;  ///< whether the bound itself is outside

  bool contains(double value) const {
    return (min_open ? value > min : value >= min) && (max_open ? value < max : value <= max);
  }
  /// "must be at least 0 and below 1".
  std::string requirement(double value) const;
  /// "1.5 is out of range; must be at least 0 and below 1".
  std::string range_error(double value) const;
};
inline NumberRange at_least(double min) { return {.min = min}; }
inline NumberRange above(double min) { return {.min = min, .min_open = true}; }
inline NumberRange half_open(double min, double max) {
  return {.min = min, .max = max, .max_open = true};
}
inline NumberRange between(double min, double max) { return {.min = min, .max = max}; }

enum class DurationUnits { counts, times, counts_or_times };

std::string quoted(const std::string& text);
std::string toml_float(double value);

Field flag(bool& value);
Field real(double& value, NumberRange range);
Field power_of_two(double& value, NumberRange range);
/// `check` gives what is wrong with a text that is not empty, or nothing.
Field text(std::string& value, std::function<std::string(const std::string&)> check = {});
/// A folder that may be left out: empty, and then not written.
Field optional_text(std::string& value);
Field extents(std::vector<std::int64_t>& values);
Field duration(Duration& value, DurationUnits units, bool positive);
/// A duration or "none".
Field optional_duration(std::optional<Duration>& value, DurationUnits units, bool positive);
/// "auto", "none" or a time.
Field walltime(bool& automatic, std::optional<Duration>& value);
/// "auto" (0) or a number.
Field data_ranks(int& value);
/// "none" (0), "all" (1) or "every n".
Field recompute(int& value);
/// A list of "optimizer", "parameters", "activations".
Field offload(parallel::Offload& value);
/// "step", "delayed" or "every n steps".
Field sync(parallel::SyncKind& kind, int& every);
/// "none" or "first..last".
Field step_range(std::optional<monitor::StepRange>& value);
/// "kill rank 2 step 17 phase checkpoint-write", several divided by ";"; left out where there is
/// none.
Field faults(std::vector<train::Fault>& value);
/// normalize = { mean = [..], std = [..] }.
Field normalize(std::vector<double>& mean, std::vector<double>& deviation);
/// Padding in pixels, or { padding = .. }.
Field random_crop(std::int64_t& padding);

/// A key that the contract names and this version does not do: only the values that mean "off"
/// (TOML, the first is shown) are taken, and nothing is stored. `known`: the contract's other
/// choices, which are refused as not available and not as misspelt.
Field unavailable(std::vector<std::string> off, std::vector<std::string> known = {});
/// "not available in this version of Trireme (0.1); available: ..."
std::string not_available_message(const std::string& available);

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
/// The field, left out of what is written where it is at its default.
template <class T>
Field omitted_if_default(const T& value, T usual, Field field) {
  field.write = [&value, usual, write = std::move(field.write)] {
    return value == usual ? std::string() : write();
  };
  return field;
}
/// A number that may be left out: 0, and then not written.
template <class T>
Field optional_integer(T& value, NumberRange range) {
  return omitted_if_default(value, T{0}, integer(value, range));
}
/// One number of a list.
Field one_of(int& value, std::vector<int> choices);

Field choice_of(std::vector<std::string> names, std::vector<std::string> not_available,
                std::function<std::size_t()> get, std::function<void(std::size_t)> set);
/// One word of a list; `not_available`: the contract's words that this version does not do.
template <class T>
Field choice(T& value, std::vector<std::pair<std::string, T>> choices,
             std::vector<std::string> not_available = {}) {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) names.push_back(name);
  const auto get = [&value, choices] {
    std::size_t index = 0;
    while (index + 1 < choices.size() && !(choices[index].second == value)) ++index;
    return index;
  };
  return choice_of(std::move(names), std::move(not_available), get,
                   [&value, choices](std::size_t index) { value = choices[index].second; });
}

}  // namespace trireme::deck
