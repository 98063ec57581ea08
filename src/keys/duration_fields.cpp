// SPDX-License-Identifier: Apache-2.0
//
// The fields whose values are durations: duration(), durations() and optional_duration().
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/keys/fields.hpp"

namespace trireme::keys {

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

}  // namespace

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

std::string describe_range(DurationUnits units, bool positive) {
  const char* names = units == DurationUnits::counts ? "epochs, steps, samples, tokens"
                      : units == DurationUnits::times
                          ? "seconds, minutes, hours, days"
                          : "epochs, steps, samples, tokens, seconds, minutes, hours, days";
  return fmt::format("{}; {}", names, positive ? "more than 0" : "at least 0");
}

Field duration(Duration& value, DurationUnits units, bool positive) {
  const auto read = [&value, units, positive](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string) return given.wrong_type("a duration in quotes, as in \"10 epochs\"");
    return read_duration(*string, units, positive, value);
  };
  return {read, [&value] { return quoted(to_string(value)); }, "duration",
          describe_range(units, positive)};
}

Field optional_duration(std::optional<Duration>& value, DurationUnits units, bool positive) {
  const auto read = [&value, units, positive](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string) return given.wrong_type("a duration in quotes, as in \"10 epochs\", or \"none\"");
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
  const auto read = [&values, units](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array)
      return given.wrong_type(
          "a list of durations in quotes, as in [\"30 epochs\", \"60 epochs\"]");
    std::vector<Duration> list;
    for (const Value& element : *array) {
      const auto string = element.string();
      if (!string)
        return fmt::format(
            "must contain only durations in quotes, as in [\"30 epochs\", \"60 epochs\"]; here it "
            "contains {}",
            element.type_name());
      if (std::string wrong = read_duration(*string, units, true, list.emplace_back());
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

}  // namespace trireme::keys
