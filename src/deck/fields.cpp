// SPDX-License-Identifier: Apache-2.0
//
// Implements the fields of deck_fields.hpp.
#include "deck_fields.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::deck {

namespace {

constexpr const char* ramp_example = "[[\"0 epochs\", 256], [\"5 epochs\", 1024]]";

/// Reads one row of a ramp. Returns an error message, or stores it in `row` and returns "".
std::string read_ramp_row(const Value& element, bool is_first, const NumberRange& range,
                          RampRow& row) {
  const auto pair = element.list();
  const bool is_pair = pair && pair->size() == 2;
  const auto from = is_pair ? pair->front().string() : std::nullopt;
  const auto global = is_pair ? pair->back().integer() : std::nullopt;
  if (!from || !global)
    return fmt::format("each row needs a duration in quotes and a number of samples, as in {}",
                       ramp_example);
  if (std::string wrong = read_duration(*from, DurationUnits::counts, false, row.from);
      !wrong.empty())
    return wrong;
  if (is_first && row.from.value != 0)
    return fmt::format("{}: the first row begins at the start of the run, as in {}", quoted(*from),
                       ramp_example);
  row.global = *global;
  if (!range.contains(static_cast<double>(row.global)))
    return "samples of a step: " + range.range_error(static_cast<double>(row.global));
  return "";
}

}  // namespace

Field ramp(std::vector<RampRow>& rows, std::int64_t& global, NumberRange range) {
  const auto read = [&rows, &global, range](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type(fmt::format("a list of rows, as in {}", ramp_example));
    std::vector<RampRow> list;
    for (const Value& element : *array) {
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
  const auto read = [&automatic, &value](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string) return given.wrong_type("\"auto\", \"none\" or a time as \"8 hours\"");
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
