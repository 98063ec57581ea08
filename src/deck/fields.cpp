// SPDX-License-Identifier: Apache-2.0
//
// Implements the fields of trireme/deck/fields.hpp and deck_fields.hpp: how each type of value is
// read from TOML, checked and written back.
//
// A field is a pair of functions over a reference to its option:
// - read(value): checks type and range. Returns an error message with the valid values and leaves
//   the option unchanged, or stores the value and returns an empty string.
// - write(): returns the option as TOML. read() accepts it and yields the same value.
// - type and range: texts for `trireme check --keys`.
// Values from --set may arrive as another TOML type (a number for a string); string_value() and
// wrong_number_message() take care of it. tables.cpp uses these fields; duration_fields.cpp and
// fault_field.cpp add more.
#include "deck_fields.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "toml_value.hpp"
#include "trireme/base/text.hpp"

namespace trireme::deck {

namespace {

/// Returns a number for a message; whole numbers are shown as integers of any size.
std::string number_text(double number) {
  const bool whole = number == std::floor(number) && std::abs(number) < 0x1p63;
  return whole ? fmt::format("{}", static_cast<std::int64_t>(number)) : fmt::format("{}", number);
}

/// Returns the error message for a value that is not a number in the range. A --set value too large
/// for a TOML number arrives as a string, so its size is checked here.
std::string wrong_number_message(const char* wanted, const TomlValue& given,
                                 const NumberRange& range) {
  const bool digits_only = given.raw && given.node.is_string() &&
                           given.raw->find_first_not_of("+-0123456789_.eE") == std::string::npos;
  if (digits_only) {
    char* end = nullptr;
    std::string plain = *given.raw;
    std::erase(plain, '_');
    const double number = std::strtod(plain.c_str(), &end);
    const bool is_number = !plain.empty() && *end == '\0';
    if (is_number && std::abs(number) >= 0x1p63)
      return fmt::format("{} is too {}; must be {}", *given.raw,
                         number > 0 ? "large" : "far below 0", range.requirement(number));
    if (is_number && std::abs(number) < std::numeric_limits<double>::min())
      return fmt::format("{} is too close to 0; write 0 or a larger number", *given.raw);
  }
  return wrong_type_message(wanted, given.node);
}

// The operating system would cut a path at this character.
constexpr const char* contains_zero_message = "must not contain the character U+0000";
constexpr std::int64_t max_extent = 1 << 20;
constexpr std::size_t max_listed_layers = 1024;

/// Returns the whole number of at most nine digits in `text`, or 0 if it is none.
int parse_count(std::string_view text) {
  if (text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos) return 0;
  int number = 0;
  for (const char digit : text) number = 10 * number + (digit - '0');
  return number;
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::vector<std::string> list;
  for (const std::string& name : names) list.push_back(quoted(name));
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Returns the error message for a word that is not among `names`. The closest one is suggested.
std::string unknown_choice_message(const std::string& given,
                                   const std::vector<std::string>& names) {
  const std::string guess = nearest(given, names);
  if (guess.empty())
    return fmt::format("{} is not a choice; choices: {}", quoted(given), quoted_list(names));
  return fmt::format("{} is not a choice, did you mean {}? choices: {}", quoted(given),
                     quoted(guess), quoted_list(names));
}

}  // namespace

std::optional<std::string> string_value(const TomlValue& given) {
  if (const auto* string = given.node.as_string()) return string->get();
  if (given.raw && !given.node.is_boolean() && !given.node.is_array() && !given.node.is_table())
    return *given.raw;
  return std::nullopt;
}

const char* type_name(const toml::node& node) {
  switch (node.type()) {
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

std::string wrong_type_message(const char* wanted, const toml::node& node) {
  std::string message = fmt::format("must be {}, not {}", wanted, type_name(node));
  if (const auto* string = node.as_string()) message += fmt::format(" ({})", quoted(string->get()));
  if (const auto* number = node.as_integer()) message += fmt::format(" ({})", number->get());
  if (const auto* number = node.as_floating_point()) message += fmt::format(" ({})", number->get());
  if (const auto* flag = node.as_boolean()) message += fmt::format(" ({})", flag->get());
  return message;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      result += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      result += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    else
      result += c;
  }
  return result + '"';
}

std::string toml_float(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string NumberRange::requirement(double value) const {
  std::vector<std::string> parts;
  if (std::isfinite(min))
    parts.push_back(fmt::format("{} {}", min_open ? "more than" : "at least", number_text(min)));
  // The limit of the option's integer type is shown only if the value exceeds it.
  if (max < std::numeric_limits<int>::max() || value >= max)
    parts.push_back(fmt::format("{} {}", max_open ? "below" : "at most",
                                std::isfinite(max) ? number_text(max) : "1.7e308"));
  return fmt::format("{}", fmt::join(parts, " and "));
}

std::string NumberRange::range_error(double value) const {
  return fmt::format("{} is out of range; must be {}", value, requirement(value));
}

Field flag(bool& value) {
  const auto read = [&value](const TomlValue& given) -> std::string {
    const auto* boolean = given.node.as_boolean();
    if (!boolean) return wrong_type_message("true or false", given.node);
    value = boolean->get();
    return "";
  };
  return {read, [&value] { return std::string(value ? "true" : "false"); }, "true or false", ""};
}

Field real(double& value, NumberRange range) {
  const auto read = [&value, range](const TomlValue& given) -> std::string {
    if (!given.node.is_number()) return wrong_number_message("a number", given, range);
    const double number = *given.node.value<double>();
    if (!std::isfinite(number) || !range.contains(number)) return range.range_error(number);
    value = number;
    return "";
  };
  return {read, [&value] { return toml_float(value); }, "number", range.requirement(range.min)};
}

// A power of two has the mantissa 0.5 in frexp(). Otherwise the option is restored and the powers
// on both sides are suggested.
Field power_of_two(double& value, NumberRange range) {
  Field field = real(value, range);
  field.read = [&value, range, read = std::move(field.read)](const TomlValue& given) {
    const double before = value;
    std::string wrong = read(given);
    int exponent = 0;
    if (!wrong.empty() || std::frexp(value, &exponent) == 0.5) return wrong;
    std::vector<std::string> powers;
    for (const double power : {std::ldexp(1.0, exponent - 1), std::ldexp(1.0, exponent)})
      if (range.contains(power)) powers.push_back(fmt::format("{}", power));
    wrong = fmt::format("{} is not a power of two, so scaling would round numbers; use {}", value,
                        fmt::join(powers, " or "));
    value = before;
    return wrong;
  };
  field.range = range.requirement(std::isfinite(range.max) ? range.max : range.min);
  field.range += ", a power of two";
  return field;
}

Field integer_of(std::function<std::int64_t()> get, std::function<void(std::int64_t)> set,
                 NumberRange range) {
  const auto read = [set = std::move(set), range](const TomlValue& given) -> std::string {
    const auto* integer = given.node.as_integer();
    if (!integer) return wrong_number_message("an integer", given, range);
    if (const auto number = static_cast<double>(integer->get()); !range.contains(number))
      return fmt::format("{} is out of range; must be {}", integer->get(),
                         range.requirement(number));
    set(integer->get());
    return "";
  };
  return {read, [get = std::move(get)] { return fmt::format("{}", get()); }, "integer",
          range.requirement(range.min)};
}

Field one_of(int& value, std::vector<int> choices) {
  const auto read = [&value, choices](const TomlValue& given) -> std::string {
    const auto* integer = given.node.as_integer();
    if (!integer)
      return wrong_number_message("an integer", given, between(choices.front(), choices.back()));
    if (std::find(choices.begin(), choices.end(), integer->get()) == choices.end()) {
      const int closest = *std::min_element(choices.begin(), choices.end(), [&](int a, int b) {
        return std::abs(static_cast<double>(integer->get()) - a) <
               std::abs(static_cast<double>(integer->get()) - b);
      });
      return fmt::format("{} is not a choice, the nearest is {}; choices: {}", integer->get(),
                         closest, fmt::join(choices, ", "));
    }
    value = static_cast<int>(integer->get());
    return "";
  };
  std::string range = fmt::format("{}", fmt::join(choices, ", "));
  return {read, [&value] { return fmt::format("{}", value); }, "integer", std::move(range)};
}

Field text(std::string& value, std::function<std::string(const std::string&)> check) {
  const auto read = [&value, check = std::move(check)](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string) return wrong_type_message("a string", given.node);
    if (string->empty()) return "must not be empty";
    if (string->find('\0') != std::string::npos) return contains_zero_message;
    if (check)
      if (std::string wrong = check(*string); !wrong.empty()) return wrong;
    value = *string;
    return "";
  };
  return {read, [&value] { return value.empty() ? std::string() : deck::quoted(value); }, "string",
          "not empty"};
}

Field optional_text(std::string& value) {
  const auto read = [&value](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string) return wrong_type_message("a string", given.node);
    if (string->find('\0') != std::string::npos) return contains_zero_message;
    value = *string;
    return "";
  };
  return {read, [&value] { return value.empty() ? std::string() : deck::quoted(value); }, "string",
          ""};
}

Field numbers(std::vector<double>& values, NumberRange range, std::size_t max_numbers,
              bool ascending) {
  const auto read = [=, &values](const TomlValue& given) -> std::string {
    const toml::array* array = given.node.as_array();
    if (!array) return wrong_type_message("a list of numbers", given.node);
    if (array->size() > max_numbers)
      return fmt::format("{} numbers are too many; at most {}", array->size(), max_numbers);
    std::vector<double> list;
    for (const toml::node& element : *array) {
      if (!element.is_number())
        return fmt::format("must contain only numbers; here it contains {}", type_name(element));
      const double number = *element.value<double>();
      if (!std::isfinite(number) || !range.contains(number))
        return fmt::format("number {}: {}", list.size() + 1, range.range_error(number));
      if (ascending && !list.empty() && number <= list.back())
        return fmt::format("number {}: {} must be more than {}, the number before it",
                           list.size() + 1, number, list.back());
      list.push_back(number);
    }
    values = std::move(list);
    return "";
  };
  const auto write = [&values] {
    std::vector<std::string> list;
    for (const double value : values)
      list.push_back(value == std::floor(value) && std::abs(value) < 1e15
                         ? fmt::format("{:.0f}", value)
                         : fmt::format("{}", value));
    return list.empty() ? std::string() : fmt::format("[{}]", fmt::join(list, ", "));
  };
  return {read, write, "list of numbers",
          fmt::format("each {}; at most {} of them", range.requirement(range.min), max_numbers)};
}

Field extents(std::vector<std::int64_t>& values) {
  const auto read = [&values](const TomlValue& given) -> std::string {
    const toml::array* array = given.node.as_array();
    if (!array) return wrong_type_message("an array of integers, as in [512, 256]", given.node);
    if (array->size() > max_listed_layers)
      return fmt::format("{} layers are too many; at most {}", array->size(), max_listed_layers);
    std::vector<std::int64_t> list;
    for (const toml::node& element : *array) {
      const auto* integer = element.as_integer();
      if (!integer)
        return "must contain only integers, as in [512, 256]; here it contains " +
               std::string(type_name(element));
      if (integer->get() < 1 || integer->get() > max_extent)
        return fmt::format("{} is out of range; every extent must be at least 1 and at most {}",
                           integer->get(), max_extent);
      list.push_back(integer->get());
    }
    values = std::move(list);
    return "";
  };
  return {read, [&values] { return fmt::format("[{}]", fmt::join(values, ", ")); },
          "list of integers",
          fmt::format("each at least 1 and at most {}; at most {} of them", max_extent,
                      max_listed_layers)};
}

Field number_pair(std::array<double, 2>& values, NumberRange range) {
  const auto read = [&values, range](const TomlValue& given) -> std::string {
    const toml::array* array = given.node.as_array();
    if (!array || array->size() != 2 || !array->get(0)->is_number() || !array->get(1)->is_number())
      return fmt::format("must be two numbers, as in [{}, {}]", values[0], values[1]);
    const std::array<double, 2> pair{*array->get(0)->value<double>(),
                                     *array->get(1)->value<double>()};
    for (const double value : pair)
      if (!range.contains(value)) return range.range_error(value);
    if (pair[0] > pair[1])
      return fmt::format("[{0}, {1}]: the lower number comes first; write [{1}, {0}]", pair[0],
                         pair[1]);
    values = pair;
    return "";
  };
  return {
      read,
      [&values] { return fmt::format("[{}, {}]", toml_float(values[0]), toml_float(values[1])); },
      "two numbers", "each " + range.requirement(range.min) + ", the lower one first"};
}

Field automatic_integer(int& value, NumberRange range) {
  const auto read = [&value, range](const TomlValue& given) -> std::string {
    const auto* integer = given.node.as_integer();
    const auto* string = given.node.as_string();
    if (string && string->get() == "auto") {
      value = 0;
    } else if (!integer) {
      return wrong_number_message("\"auto\" or an integer", given, range);
    } else if (!range.contains(static_cast<double>(integer->get()))) {
      return fmt::format("{} is out of range; must be \"auto\" or {} to {}", integer->get(),
                         range.min, range.max);
    } else {
      value = static_cast<int>(integer->get());
    }
    return "";
  };
  return {read,
          [&value] { return value == 0 ? std::string("\"auto\"") : fmt::format("{}", value); },
          "integer or word", "\"auto\", or " + range.requirement(range.min)};
}

Field recompute(int& value) {
  const auto read = [&value](const TomlValue& given) -> std::string {
    constexpr std::string_view every = "every ";
    constexpr const char* demand =
        "\"none\", \"all\" or \"every n\" (each n-th block), as in \"every 2\"";
    const auto string = string_value(given);
    if (!string) return wrong_type_message(demand, given.node);
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
  const auto read = [&value, names = all_names](const TomlValue& given) -> std::string {
    const toml::array* list = given.node.as_array();
    if (!list)
      return wrong_type_message(
          fmt::format("a list of {}, as in [\"optimizer\"]", quoted_list(names)).c_str(),
          given.node);
    parallel::Offload read_value;
    for (const toml::node& node : *list) {
      const auto* string = node.as_string();
      if (!string)
        return wrong_type_message(fmt::format("a list of {}", quoted_list(names)).c_str(), node);
      const auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& known) {
        return known.first == string->get();
      });
      if (part == parts.end()) return unknown_choice_message(string->get(), names);
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
  const auto read = [&kind, &every](const TomlValue& given) -> std::string {
    constexpr std::string_view begin = "every ", end = " steps";
    constexpr const char* demand =
        "\"step\", \"delayed\" or \"every n steps\", as in \"every 8 steps\"";
    const auto string = string_value(given);
    if (!string) return wrong_type_message(demand, given.node);
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
  const auto read = [&value, range](const TomlValue& given) -> std::string {
    if (const auto* flag = given.node.as_boolean()) {
      value = flag->get() ? all : 0;
      return "";
    }
    const auto* integer = given.node.as_integer();
    if (!integer) return wrong_number_message("true, false or an integer", given, range);
    if (!range.contains(static_cast<double>(integer->get())))
      return fmt::format("{} is out of range; must be true, false, or {} to {}", integer->get(),
                         range.min, range.max);
    value = static_cast<int>(integer->get());
    return "";
  };
  return {read,
          [&value] {
            return value == all ? "true" : value == 0 ? "false" : fmt::format("{}", value);
          },
          "true, false or integer", range.requirement(range.min)};
}

Field step_range(std::optional<monitor::StepRange>& value) {
  const auto read = [&value](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string)
      return wrong_type_message("a range of steps in quotes, as in \"10..12\", or \"none\"",
                                given.node);
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

Field choice_of(std::vector<std::string> names, std::function<std::size_t()> get,
                std::function<void(std::size_t)> set) {
  const auto read = [names, set = std::move(set)](const TomlValue& given) -> std::string {
    const auto string = string_value(given);
    if (!string)
      return wrong_type_message(fmt::format("one of {}", quoted_list(names)).c_str(), given.node);
    const auto place = std::find(names.begin(), names.end(), *string);
    if (place != names.end()) {
      set(static_cast<std::size_t>(place - names.begin()));
      return "";
    }
    return unknown_choice_message(*string, names);
  };
  std::string range = quoted_list(names);
  return {read, [names = std::move(names), get = std::move(get)] { return quoted(names[get()]); },
          "word", std::move(range)};
}

}  // namespace trireme::deck
