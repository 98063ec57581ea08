// SPDX-License-Identifier: Apache-2.0
//
// The fields whose values are durations: duration(), durations(), optional_duration(), walltime()
// and ramp().
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "deck_fields.hpp"
#include "toml_value.hpp"

namespace trireme::deck {

namespace {

// Longer than any run, and small enough that a product with a dataset's samples cannot overflow.
constexpr double max_duration = 1e15;

/// Returns an error message if the duration's unit is not allowed, else an empty string.
std::string wrong_units_message(const Duration& duration, DurationUnits units) {
  if (units == DurationUnits::counts && duration.is_time())
    return "must be counted in epochs, steps or samples, not in time";
  if (units == DurationUnits::times && !duration.is_time())
    return "must be a time (seconds, minutes, hours, days), as in \"30 minutes\"";
  return "";
}

/// Parses a duration. Returns an error message, or stores it in `value` and returns "".
std::string read_duration(const std::string& text, DurationUnits units, bool positive,
                          Duration& value) {
  std::string why;
  const std::optional<Duration> duration = parse_duration(text, &why);
  if (!duration) return fmt::format("{}: {}", quoted(text), why);
  if (const std::string wrong = wrong_units_message(*duration, units); !wrong.empty())
    return fmt::format("{}: {}", quoted(text), wrong);
  if (positive && duration->value <= 0) return fmt::format("{}: must be more than 0", quoted(text));
  if (duration->value > max_duration)
    return fmt::format("{}: is too long; must be at most {}", quoted(text),
                       to_string({max_duration, duration->unit}));
  value = *duration;
  return "";
}

/// Returns the valid units and numbers of a duration in words.
std::string describe_range(DurationUnits units, bool positive) {
  const char* names = units == DurationUnits::counts ? "epochs, steps, samples, tokens"
                      : units == DurationUnits::times
                          ? "seconds, minutes, hours, days"
                          : "epochs, steps, samples, tokens, seconds, minutes, hours, days";
  return fmt::format("{}; {}", names, positive ? "more than 0" : "at least 0");
}

}  // namespace

Field duration(Duration& value, DurationUnits units, bool positive) {
  const auto read = [&value, units, positive](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string) return wrong_type_message("a duration in quotes, as in \"10 epochs\"", given.node);
    return read_duration(*string, units, positive, value);
  };
  return {read, [&value] { return quoted(to_string(value)); }, "duration",
          describe_range(units, positive)};
}

Field optional_duration(std::optional<Duration>& value, DurationUnits units, bool positive) {
  const auto read = [&value, units, positive](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string)
      return wrong_type_message("a duration in quotes, as in \"10 epochs\", or \"none\"",
                                given.node);
    Duration duration;
    if (*string == "none") {
      value.reset();
      return "";
    }
    if (std::string wrong = read_duration(*string, units, positive, duration); !wrong.empty())
      return wrong;
    value = duration;
    return "";
  };
  return {read, [&value] { return quoted(value ? to_string(*value) : "none"); }, "duration or word",
          "\"none\", or " + describe_range(units, positive)};
}

Field durations(std::vector<Duration>& values, DurationUnits units) {
  const auto read = [&values, units](const TomlValue& given) -> std::string {
    const toml::array* array = given.node.as_array();
    if (!array)
      return wrong_type_message(
          "a list of durations in quotes, as in [\"30 epochs\", \"60 epochs\"]", given.node);
    std::vector<Duration> list;
    for (const toml::node& element : *array) {
      const auto* string = element.as_string();
      if (!string)
        return fmt::format(
            "must contain only durations in quotes, as in [\"30 epochs\", \"60 epochs\"]; here it "
            "contains {}",
            type_name(element));
      if (std::string wrong = read_duration(string->get(), units, true, list.emplace_back());
          !wrong.empty())
        return wrong;
    }
    values = std::move(list);
    return "";
  };
  return {read,
          [&values] {
            std::vector<std::string> texts;
            for (const Duration& value : values) texts.push_back(quoted(to_string(value)));
            return texts.empty() ? std::string() : fmt::format("[{}]", fmt::join(texts, ", "));
          },
          "list of durations", describe_range(units, true)};
}

namespace {

constexpr const char* ramp_example = "[[\"0 epochs\", 256], [\"5 epochs\", 1024]]";

/// Reads one row of a ramp. Returns an error message, or stores it in `row` and returns "".
std::string read_ramp_row(const toml::node& element, bool is_first, const NumberRange& range,
                          RampRow& row) {
  const toml::array* pair = element.as_array();
  const auto* from = pair && pair->size() == 2 ? pair->get(0)->as_string() : nullptr;
  const auto* global = pair && pair->size() == 2 ? pair->get(1)->as_integer() : nullptr;
  if (from == nullptr || global == nullptr)
    return fmt::format("each row needs a duration in quotes and a number of samples, as in {}",
                       ramp_example);
  if (std::string wrong = read_duration(from->get(), DurationUnits::counts, false, row.from);
      !wrong.empty())
    return wrong;
  if (is_first && row.from.value != 0)
    return fmt::format("{}: the first row begins at the start of the run, as in {}",
                       quoted(from->get()), ramp_example);
  row.global = global->get();
  if (!range.contains(static_cast<double>(row.global)))
    return "samples of a step: " + range.range_error(static_cast<double>(row.global));
  return "";
}

}  // namespace

Field ramp(std::vector<RampRow>& rows, std::int64_t& global, NumberRange range) {
  const auto read = [&rows, &global, range](const TomlValue& given) -> std::string {
    const toml::array* array = given.node.as_array();
    if (!array)
      return wrong_type_message(fmt::format("a list of rows, as in {}", ramp_example).c_str(),
                                given.node);
    std::vector<RampRow> list;
    for (const toml::node& element : *array) {
      const bool is_first = list.empty();
      if (std::string wrong = read_ramp_row(element, is_first, range, list.emplace_back());
          !wrong.empty())
        return wrong;
    }
    for (std::size_t i = 1; i < list.size(); ++i) {
      if (list[i].global == list[i - 1].global)
        return fmt::format("the row {} has the {} samples of the row before it; remove it",
                           quoted(to_string(list[i].from)), list[i].global);
    }
    if (!list.empty()) global = list.front().global;
    rows = std::move(list);
    return "";
  };
  const auto write = [&rows] {
    std::vector<std::string> texts;
    for (const RampRow& row : rows)
      texts.push_back(fmt::format("[{}, {}]", quoted(to_string(row.from)), row.global));
    return texts.empty() ? std::string() : fmt::format("[{}]", fmt::join(texts, ", "));
  };
  return {read, write, "list of [duration, integer]",
          fmt::format("epochs, steps, samples, tokens; {}", range.requirement(range.min))};
}

Field walltime(bool& automatic, std::optional<Duration>& value) {
  const auto read = [&automatic, &value](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string)
      return wrong_type_message("\"auto\", \"none\" or a time as \"8 hours\"", given.node);
    Duration duration;
    if (*string != "auto" && *string != "none") {
      if (std::string wrong = read_duration(*string, DurationUnits::times, true, duration);
          !wrong.empty())
        return wrong + " (or \"auto\", \"none\")";
      value = duration;
    } else {
      value.reset();
    }
    automatic = *string == "auto";
    return "";
  };
  return {read,
          [&automatic, &value] {
            return quoted(automatic ? "auto" : value ? to_string(*value) : "none");
          },
          "duration or word",
          "\"auto\", \"none\", or " + describe_range(DurationUnits::times, true)};
}

}  // namespace trireme::deck
