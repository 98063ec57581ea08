// SPDX-License-Identifier: Apache-2.0
//
// Implements the fields of deck_fields.hpp, of values that only decks have.
#include "deck_fields.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::deck {

namespace {

constexpr std::int64_t max_extent = 1 << 20;
constexpr std::size_t max_listed_layers = 1024;

/// Returns the whole number of at most nine digits in `text`, or 0 if it is none.
int parse_count(std::string_view text) {
  if (text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos) return 0;
  int number = 0;
  for (const char digit : text) number = 10 * number + (digit - '0');
  return number;
}

}  // namespace

Field extents(std::vector<std::int64_t>& values) {
  const auto read = [&values](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type("an array of integers, as in [512, 256]");
    if (array->size() > max_listed_layers)
      return fmt::format("{} layers are too many; at most {}", array->size(), max_listed_layers);
    std::vector<std::int64_t> list;
    for (const Value& element : *array) {
      const auto integer = element.integer();
      if (!integer)
        return "must contain only integers, as in [512, 256]; here it contains " +
               std::string(element.type_name());
      if (*integer < 1 || *integer > max_extent)
        return fmt::format("{} is out of range; every extent must be at least 1 and at most {}",
                           *integer, max_extent);
      list.push_back(*integer);
    }
    values = std::move(list);
    return "";
  };
  return {read, [&values] { return fmt::format("[{}]", fmt::join(values, ", ")); },
          "list of integers",
          fmt::format("each at least 1 and at most {}; at most {} of them", max_extent,
                      max_listed_layers)};
}

Field recompute(int& value) {
  const auto read = [&value](const Value& given) -> std::string {
    constexpr std::string_view every = "every ";
    constexpr const char* demand =
        "\"none\", \"all\" or \"every n\" (each n-th block), as in \"every 2\"";
    const auto string = given.text();
    if (!string) return given.wrong_type(demand);
    const int blocks = *string == "all" ? 1
                       : string->starts_with(every)
                           ? parse_count(std::string_view(*string).substr(every.size()))
                           : 0;
    if (blocks == 0 && *string != "none")
      return fmt::format("{}: must be {}", quoted(*string), demand);
    value = blocks;
    return "";
  };
  return {
      read,
      [&value] {
        return quoted(value == 0 ? "none" : value == 1 ? "all" : fmt::format("every {}", value));
      },
      "word", "\"none\", \"all\", \"every n\"; n at least 1"};
}

Field offload(parallel::Offload& value) {
  static const std::vector<std::pair<std::string, bool parallel::Offload::*>> parts = {
      {"optimizer", &parallel::Offload::optimizer},
      {"parameters", &parallel::Offload::parameters},
      {"activations", &parallel::Offload::activations}};
  std::vector<std::string> all_names;
  for (const auto& part : parts) all_names.push_back(part.first);
  const auto read = [&value, names = all_names](const Value& given) -> std::string {
    const auto list = given.list();
    if (!list)
      return given.wrong_type(
          fmt::format("a list of {}, as in [\"optimizer\"]", quoted_list(names)));
    parallel::Offload read_value;
    for (const Value& node : *list) {
      const auto string = node.string();
      if (!string) return node.wrong_type(fmt::format("a list of {}", quoted_list(names)));
      const auto part = std::find_if(parts.begin(), parts.end(),
                                     [&](const auto& known) { return known.first == *string; });
      if (part == parts.end()) return unknown_choice(*string, names);
      read_value.*(part->second) = true;
    }
    value = read_value;
    return "";
  };
  return {read,
          [&value] {
            std::vector<std::string> given;
            for (const auto& [name, part] : parts)
              if (value.*part) given.push_back(quoted(name));
            return fmt::format("[{}]", fmt::join(given, ", "));
          },
          "list of words", quoted_list(all_names)};
}

Field sync(parallel::SyncKind& kind, int& every) {
  using parallel::SyncKind;
  const auto read = [&kind, &every](const Value& given) -> std::string {
    constexpr std::string_view begin = "every ", end = " steps";
    constexpr const char* demand =
        "\"step\", \"delayed\" or \"every n steps\", as in \"every 8 steps\"";
    const auto string = given.text();
    if (!string) return given.wrong_type(demand);
    std::string_view number = *string;
    const bool periodic = number.size() > begin.size() + end.size() && number.starts_with(begin) &&
                          number.ends_with(end);
    if (periodic) number = number.substr(begin.size(), number.size() - begin.size() - end.size());
    const int steps = periodic ? parse_count(number) : 1;
    if (steps == 0 || (!periodic && number != "step" && number != "delayed"))
      return fmt::format("{}: must be {}", quoted(*string), demand);
    kind = *string == "delayed" ? SyncKind::delayed
           : steps > 1          ? SyncKind::periodic
                                : SyncKind::step;
    every = steps;
    return "";
  };
  return {read,
          [&kind, &every] {
            return quoted(kind == SyncKind::periodic  ? fmt::format("every {} steps", every)
                          : kind == SyncKind::delayed ? "delayed"
                                                      : "step");
          },
          "word", "\"step\", \"delayed\", \"every n steps\"; n at least 1"};
}

Field rank_group(int& value, NumberRange range) {
  constexpr int all = parallel::ParallelOptions::all_data_ranks;
  const auto read = [&value, range](const Value& given) -> std::string {
    if (const auto flag = given.boolean()) {
      value = *flag ? all : 0;
      return "";
    }
    const auto integer = given.integer();
    if (!integer) return wrong_number("true, false or an integer", given, range);
    if (!range.contains(static_cast<double>(*integer)))
      return fmt::format("{} is out of range; must be true, false, or {} to {}", *integer,
                         range.min, range.max);
    value = static_cast<int>(*integer);
    return "";
  };
  return {read,
          [&value] {
            return value == all ? "true" : value == 0 ? "false" : fmt::format("{}", value);
          },
          "true, false or integer", range.requirement(range.min)};
}

Field step_range(std::optional<monitor::StepRange>& value) {
  const auto read = [&value](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string)
      return given.wrong_type("a range of steps in quotes, as in \"10..12\", or \"none\"");
    value.reset();
    if (*string == "none") return "";
    const std::size_t dots = string->find("..");
    const int first = parse_count(std::string_view(*string).substr(0, dots)),
              last = dots == std::string::npos
                         ? 0
                         : parse_count(std::string_view(*string).substr(dots + 2));
    if (first < 1 || last < 1)
      return fmt::format(
          "{}: must be a range of steps, counted from 1, as in \"10..12\", or \"none\"",
          quoted(*string));
    if (last < first)
      return fmt::format("{}: ends before it begins; must be as \"{}..{}\"", quoted(*string), last,
                         first);
    value = monitor::StepRange{first, last};
    return "";
  };
  return {read,
          [&value] {
            return quoted(value ? fmt::format("{}..{}", value->first, value->last) : "none");
          },
          "range of steps or word", "\"none\", or \"first..last\"; first at least 1"};
}

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
