// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes optimizer.groups, an array of tables.
//
// [[optimizer.groups]] and groups = [{ ... }] are the same in TOML. The resolved deck has the
// second form, because it has one line for each key.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group_field.hpp"

namespace trireme::optim {

using namespace keys;

namespace {

constexpr std::size_t max_groups = 256;
constexpr const char* form = "{ match = \"fc.*\", rate_ratio = 10, decay = 0 }";
constexpr std::array<std::string_view, 4> group_keys{"match", "rate_ratio", "decay", "frozen"};
// The ratio is a factor in float32.
constexpr NumberRange ratio_range{.min = 0, .max = 1e6, .min_open = true};

/// Reads a number of the range, if it is there. Returns an error message, or an empty string.
std::string read_number(const Table& table, const char* name, const NumberRange& range,
                        std::optional<double>& number) {
  const Value* const given = find(table, name);
  if (!given) return "";
  if (!given->number()) return fmt::format("{} {}", name, given->wrong_type("a number"));
  const double value = *given->number();
  if (!std::isfinite(value) || !range.contains(value))
    return fmt::format("{} = {}", name, range.range_error(value));
  number = value;
  return "";
}

/// Reads one group. Returns an error message, or an empty string.
std::string read_group(const Table& table, ParameterGroup& group) {
  // 1. Only known keys.
  for (const auto& [key, value] : table)
    if (std::find(group_keys.begin(), group_keys.end(), key) == group_keys.end())
      return fmt::format("{}: unknown key; the keys are \"{}\"", quoted(key),
                         fmt::join(group_keys, "\", \""));
  // 2. The pattern.
  const Value* const match = find(table, "match");
  if (!match) return "needs match, a pattern of names of weights, as in match = \"fc.*\"";
  const auto pattern = match->string();
  if (!pattern) return "match " + match->wrong_type("a string, as in \"fc.*\"");
  group.match = *pattern;
  if (group.match.empty()) return "match must not be empty; \"*\" matches every name";
  // 3. The settings.
  std::optional<double> ratio;
  if (std::string wrong = read_number(table, "rate_ratio", ratio_range, ratio); !wrong.empty()) {
    const bool is_zero = find(table, "rate_ratio")->number() == 0.0;
    return wrong + (is_zero ? "; frozen = true keeps the weights as they are" : "");
  }
  group.rate_ratio = ratio.value_or(1);
  if (std::string wrong = read_number(table, "decay", at_least(0), group.decay); !wrong.empty())
    return wrong;
  if (const Value* const frozen = find(table, "frozen")) {
    const auto boolean = frozen->boolean();
    if (!boolean) return "frozen " + frozen->wrong_type("true or false");
    group.frozen = *boolean;
  }
  if (group.frozen && (ratio || group.decay))
    return fmt::format(
        "{} has no effect beside frozen = true, which keeps the weights; remove one "
        "of them",
        ratio ? "rate_ratio" : "decay");
  return "";
}

/// Returns the group as a TOML table that read_group() accepts.
std::string format_group(const ParameterGroup& group) {
  std::string text = "{ match = " + quoted(group.match);
  if (group.frozen) return text + ", frozen = true }";
  text += ", rate_ratio = " + toml_float(group.rate_ratio);
  if (group.decay) text += ", decay = " + toml_float(*group.decay);
  return text + " }";
}

}  // namespace

Field parameter_groups(std::vector<ParameterGroup>& groups) {
  const auto read = [&groups](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type(fmt::format("a list of tables, as in [{}]", form));
    if (array->size() > max_groups)
      return fmt::format("{} groups are too many; at most {}", array->size(), max_groups);
    std::vector<ParameterGroup> list;
    for (const Value& element : *array) {
      const std::string name = fmt::format("group {}", list.size() + 1);
      const auto table = element.table();
      if (!table)
        return fmt::format("{} {}", name, element.wrong_type(fmt::format("a table {}", form)));
      ParameterGroup group;
      if (std::string wrong = read_group(*table, group); !wrong.empty())
        return fmt::format("{}: {}", name, wrong);
      list.push_back(std::move(group));
    }
    groups = std::move(list);
    return "";
  };
  return {read,
          [&groups] {
            std::vector<std::string> tables;
            for (const ParameterGroup& group : groups) tables.push_back(format_group(group));
            return tables.empty() ? std::string() : fmt::format("[{}]", fmt::join(tables, ", "));
          },
          "list of tables",
          fmt::format("each {}, or {{ match = \"..\", frozen = true }}; rate_ratio more than 0 and "
                      "at most 1e6, decay at least 0; at most {} of them",
                      form, max_groups)};
}

}  // namespace trireme::optim
