// SPDX-License-Identifier: Apache-2.0
//
// Implements the fields of trireme/keys/fields.hpp: how each type of value is read, checked and
// written back.
//
// A field is a pair of functions over a reference to its option:
// - read(value): checks type and range. Returns an error message with the valid values and leaves
//   the option unchanged, or stores the value and returns an empty string.
// - write(): returns the option as TOML. read() accepts it and yields the same value.
// - type and range: texts for `trireme check --keys`.
// Values from --set may arrive as another TOML type (a number for a string); Value::text() and
// wrong_number() take care of it.
#include "trireme/keys/fields.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/text.hpp"

namespace trireme::keys {

namespace {

/// Returns a number for a message; whole numbers are shown as integers of any size.
std::string number_text(double number) {
  const bool whole = number == std::floor(number) && std::abs(number) < 0x1p63;
  return whole ? fmt::format("{}", static_cast<std::int64_t>(number)) : fmt::format("{}", number);
}

// The operating system would cut a path at this character.
constexpr const char* contains_zero_message = "must not contain the character U+0000";

}  // namespace

std::string wrong_number(const char* wanted, const Value& given, const NumberRange& range) {
  const bool digits_only = given.raw() && given.string() &&
                           given.raw()->find_first_not_of("+-0123456789_.eE") == std::string::npos;
  if (digits_only) {
    char* end = nullptr;
    std::string plain = *given.raw();
    std::erase(plain, '_');
    const double number = std::strtod(plain.c_str(), &end);
    const bool is_number = !plain.empty() && *end == '\0';
    if (is_number && std::abs(number) >= 0x1p63)
      return fmt::format("{} is too {}; must be {}", *given.raw(),
                         number > 0 ? "large" : "far below 0", range.requirement(number));
    if (is_number && std::abs(number) < std::numeric_limits<double>::min())
      return fmt::format("{} is too close to 0; write 0 or a larger number", *given.raw());
  }
  return given.wrong_type(wanted);
}

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

std::string unknown_choice(const std::string& given, const std::vector<std::string>& names) {
  const std::string guess = nearest(given, names);
  if (guess.empty())
    return fmt::format("{} is not a choice; choices: {}", quoted(given), quoted_list(names));
  return fmt::format("{} is not a choice, did you mean {}? choices: {}", quoted(given),
                     quoted(guess), quoted_list(names));
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
  const auto read = [&value](const Value& given) -> std::string {
    const auto boolean = given.boolean();
    if (!boolean) return given.wrong_type("true or false");
    value = *boolean;
    return "";
  };
  return {read, [&value] { return std::string(value ? "true" : "false"); }, "true or false", ""};
}

Field real(double& value, NumberRange range) {
  const auto read = [&value, range](const Value& given) -> std::string {
    const auto given_number = given.number();
    if (!given_number) return wrong_number("a number", given, range);
    const double number = *given_number;
    if (!std::isfinite(number) || !range.contains(number)) return range.range_error(number);
    value = number;
    return "";
  };
  return {read, [&value] { return toml_float(value); }, "number", range.requirement(range.min)};
}

Field optional_real(std::optional<double>& value, NumberRange range) {
  const auto read = [&value, range](const Value& given) {
    double number = 0;
    std::string wrong = real(number, range).read(given);
    if (wrong.empty()) value = number;
    return wrong;
  };
  return {read, [&value] { return value ? toml_float(*value) : std::string(); }, "number",
          range.requirement(range.min)};
}

// A power of two has the mantissa 0.5 in frexp(). Otherwise the option is restored and the powers
// on both sides are suggested.
Field power_of_two(double& value, NumberRange range) {
  Field field = real(value, range);
  field.read = [&value, range, read = std::move(field.read)](const Value& given) {
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
  const auto read = [set = std::move(set), range](const Value& given) -> std::string {
    const auto integer = given.integer();
    if (!integer) return wrong_number("an integer", given, range);
    if (const auto number = static_cast<double>(*integer); !range.contains(number))
      return fmt::format("{} is out of range; must be {}", *integer, range.requirement(number));
    set(*integer);
    return "";
  };
  return {read, [get = std::move(get)] { return fmt::format("{}", get()); }, "integer",
          range.requirement(range.min)};
}

Field one_of(int& value, std::vector<int> choices) {
  const auto read = [&value, choices](const Value& given) -> std::string {
    const auto integer = given.integer();
    if (!integer)
      return wrong_number("an integer", given, between(choices.front(), choices.back()));
    if (std::find(choices.begin(), choices.end(), *integer) == choices.end()) {
      const int closest = *std::min_element(choices.begin(), choices.end(), [&](int a, int b) {
        return std::abs(static_cast<double>(*integer) - a) <
               std::abs(static_cast<double>(*integer) - b);
      });
      return fmt::format("{} is not a choice, the nearest is {}; choices: {}", *integer, closest,
                         fmt::join(choices, ", "));
    }
    value = static_cast<int>(*integer);
    return "";
  };
  std::string range = fmt::format("{}", fmt::join(choices, ", "));
  return {read, [&value] { return fmt::format("{}", value); }, "integer", std::move(range)};
}

Field text(std::string& value, std::function<std::string(const std::string&)> check) {
  const auto read = [&value, check = std::move(check)](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string) return given.wrong_type("a string");
    if (string->empty()) return "must not be empty";
    if (string->find('\0') != std::string::npos) return contains_zero_message;
    if (check)
      if (std::string wrong = check(*string); !wrong.empty()) return wrong;
    value = *string;
    return "";
  };
  return {read, [&value] { return value.empty() ? std::string() : keys::quoted(value); }, "string",
          "not empty"};
}

Field optional_text(std::string& value) {
  const auto read = [&value](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string) return given.wrong_type("a string");
    if (string->find('\0') != std::string::npos) return contains_zero_message;
    value = *string;
    return "";
  };
  return {read, [&value] { return value.empty() ? std::string() : keys::quoted(value); }, "string",
          ""};
}

Field numbers(std::vector<double>& values, NumberRange range, std::size_t max_numbers,
              bool ascending) {
  const auto read = [=, &values](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type("a list of numbers");
    if (array->size() > max_numbers)
      return fmt::format("{} numbers are too many; at most {}", array->size(), max_numbers);
    std::vector<double> list;
    for (const Value& element : *array) {
      if (!element.number())
        return fmt::format("must contain only numbers; here it contains {}", element.type_name());
      const double number = *element.number();
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

Field number_pair(std::array<double, 2>& values, NumberRange range) {
  const auto read = [&values, range](const Value& given) -> std::string {
    const auto list = given.list();
    const bool are_two =
        list && list->size() == 2 && list->front().number() && list->back().number();
    if (!are_two) return fmt::format("must be two numbers, as in [{}, {}]", values[0], values[1]);
    const std::array<double, 2> pair{*list->front().number(), *list->back().number()};
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
  const auto read = [&value, range](const Value& given) -> std::string {
    const auto integer = given.integer();
    const auto string = given.string();
    if (string && *string == "auto") {
      value = 0;
    } else if (!integer) {
      return wrong_number("\"auto\" or an integer", given, range);
    } else if (!range.contains(static_cast<double>(*integer))) {
      return fmt::format("{} is out of range; must be \"auto\" or {} to {}", *integer, range.min,
                         range.max);
    } else {
      value = static_cast<int>(*integer);
    }
    return "";
  };
  return {read,
          [&value] { return value == 0 ? std::string("\"auto\"") : fmt::format("{}", value); },
          "integer or word", "\"auto\", or " + range.requirement(range.min)};
}

Field choice_of(std::vector<std::string> names, std::function<std::size_t()> get,
                std::function<void(std::size_t)> set) {
  const auto read = [names, set = std::move(set)](const Value& given) -> std::string {
    const auto string = given.text();
    if (!string) return given.wrong_type(fmt::format("one of {}", quoted_list(names)));
    const auto place = std::find(names.begin(), names.end(), *string);
    if (place != names.end()) {
      set(static_cast<std::size_t>(place - names.begin()));
      return "";
    }
    return unknown_choice(*string, names);
  };
  std::string range = quoted_list(names);
  return {read, [names = std::move(names), get = std::move(get)] { return quoted(names[get()]); },
          "word", std::move(range)};
}

}  // namespace trireme::keys
