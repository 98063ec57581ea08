// SPDX-License-Identifier: Apache-2.0
//
// Parses and formats durations of the deck ("10 epochs", "1.1M samples", "8 hours") and converts
// them to steps.
//
// Order of parsing: number, then an exponent or a size letter (k, M, B), then the unit. The deck
// reader calls parse_duration() for every duration; the trainer calls steps_of() once the dataset's
// size is known.

#include "trireme/base/duration.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme {

namespace {

using Unit = Duration::Unit;

struct UnitName {
  const char *singular, *plural;
  Unit unit;
  double factor;
};

constexpr std::array<UnitName, 8> unit_names = {{{"epoch", "epochs", Unit::epochs, 1},
                                                 {"step", "steps", Unit::steps, 1},
                                                 {"sample", "samples", Unit::samples, 1},
                                                 {"token", "tokens", Unit::tokens, 1},
                                                 {"second", "seconds", Unit::seconds, 1},
                                                 {"minute", "minutes", Unit::seconds, 60},
                                                 {"hour", "hours", Unit::seconds, 3600},
                                                 {"day", "days", Unit::seconds, 86400}}};

constexpr const char* unit_list = "epochs, steps, samples, tokens, seconds, minutes, hours, days";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::optional<double> read_number(const std::string& digits) {
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

const UnitName* find_unit(std::string_view text) {
  for (const UnitName& name : unit_names)
    if (text == name.singular || text == name.plural) return &name;
  return nullptr;
}

/// Returns the decimal exponent (3, 6, 9) of a size letter k, M or B at the front of `rest`, else
/// 0. The letter counts only if a space or a complete unit follows it: "k steps" or "ksteps".
int size_letter_exponent(std::string_view rest) {
  if (rest.empty() ||
      (rest.size() > 1 && rest[1] != ' ' && rest[1] != '\t' && !find_unit(rest.substr(1))))
    return 0;
  switch (rest.front()) {
    case 'k': return 3;
    case 'M': return 6;
    case 'B': return 9;
    default: return 0;
  }
}

std::string unknown_unit(std::string_view unit) {
  std::vector<std::string> names;
  for (const UnitName& name : unit_names) names.insert(names.end(), {name.plural, name.singular});
  const std::string guess = nearest(unit, names);
  if (!guess.empty()) return fmt::format("unknown unit \"{}\", did you mean \"{}\"?", unit, guess);
  return fmt::format("unknown unit \"{}\"; units are {} (k, M or B may follow the number)", unit,
                     unit_list);
}

}  // namespace

std::optional<Duration> parse_duration(std::string_view text, std::string* error_message) {
  const auto refuse = [&](std::string message) {
    if (error_message) *error_message = std::move(message);
    return std::nullopt;
  };
  // 1. Refuse empty and negative durations.
  std::string_view rest = trim(text);
  if (rest.empty())
    return refuse("the duration is empty; write a number and a unit, as in \"10 epochs\"");
  if (rest.front() == '-') return refuse("a duration must not be negative");

  // 2. The digits of the number.
  std::size_t length = 0;
  while (length < rest.size() && (is_digit(rest[length]) || rest[length] == '.')) ++length;
  if (length == 0)
    return refuse("a duration begins with a number, as in \"10 epochs\" or \"30 minutes\"");
  std::string digits(rest.substr(0, length));
  rest.remove_prefix(length);

  // 3. An exponent or a size letter. An "e" is an exponent only if digits follow: "1e6 steps" has
  //    one, "10 epochs" and "10epochs" do not.
  std::size_t exponent = 0;
  if (!rest.empty() && (rest[0] == 'e' || rest[0] == 'E')) {
    exponent = 1;
    if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
    const std::size_t first = exponent;
    while (exponent < rest.size() && is_digit(rest[exponent])) ++exponent;
    if (exponent == first) exponent = 0;
  }
  if (exponent > 0) {
    digits += rest.substr(0, exponent);
    rest.remove_prefix(exponent);
  } else if (const int power = size_letter_exponent(rest)) {
    // Appended to the digits and parsed as one decimal number, so that "1.1M" gives exactly the
    // double 1100000.
    digits += fmt::format("e{}", power);
    rest.remove_prefix(1);
  }

  // 4. The value and the unit.
  const std::optional<double> value = read_number(digits);
  if (!value)
    return refuse(fmt::format("\"{}\" is not a number; write for instance \"10 epochs\"", digits));
  const std::string_view unit = trim(rest);
  if (unit.empty())
    return refuse(fmt::format(
        "a unit is missing; write for instance \"{0} epochs\" or \"{0} steps\" (units: {1})",
        trim(text), unit_list));
  if (const UnitName* name = find_unit(unit)) return Duration{*value * name->factor, name->unit};
  return refuse(unknown_unit(unit));
}

std::string to_string(const Duration& duration) {
  double value = duration.value;
  std::size_t index = static_cast<std::size_t>(duration.unit);
  if (duration.is_time() && value > 0) {
    if (std::fmod(value, 3600) == 0) {
      value /= 3600;
      index += 2;
    } else if (std::fmod(value, 60) == 0) {
      value /= 60;
      index += 1;
    }
  }
  const UnitName& name = unit_names[index];
  const bool whole = value == std::floor(value) && value < 0x1p53;
  const std::string number =
      whole ? fmt::format("{}", static_cast<std::int64_t>(value)) : fmt::format("{}", value);
  return fmt::format("{} {}", number, value == 1 ? name.singular : name.plural);
}

namespace {

/// Returns the row of a step, counted from 1. `rows` is not empty.
const StepRow& row_of_step(const std::vector<StepRow>& rows, std::int64_t step) {
  const auto after = std::upper_bound(
      rows.begin() + 1, rows.end(), step,
      [](std::int64_t value, const StepRow& row) { return value < row.first_step; });
  return *(after - 1);
}

/// Returns the number of steps that take this many samples, possibly a fraction.
double steps_of_samples(double samples, const StepScale& scale) {
  if (scale.rows.empty()) return samples / static_cast<double>(scale.samples_per_step);
  const auto after = std::upper_bound(scale.rows.begin() + 1, scale.rows.end(), samples,
                                      [](double value, const StepRow& row) {
                                        return value < static_cast<double>(row.first_sample);
                                      });
  const StepRow& row = *(after - 1);
  return static_cast<double>(row.first_step - 1) +
         (samples - static_cast<double>(row.first_sample)) /
             static_cast<double>(row.samples_per_step);
}

}  // namespace

std::int64_t StepScale::samples_of(std::int64_t step) const {
  return rows.empty() ? samples_per_step : row_of_step(rows, step).samples_per_step;
}

std::int64_t StepScale::samples_after(std::int64_t step) const {
  if (rows.empty()) return step * samples_per_step;
  const StepRow& row = row_of_step(rows, step);
  return row.first_sample + (step - row.first_step + 1) * row.samples_per_step;
}

double samples_of(const Duration& duration, const StepScale& scale) {
  switch (duration.unit) {
    case Unit::epochs: return duration.value * static_cast<double>(scale.samples_per_epoch);
    case Unit::samples: return duration.value;
    case Unit::tokens:
      validate(scale.tokens_per_sample > 0,
               "\"{}\": tokens count only for a token dataset; write epochs, steps or samples",
               to_string(duration));
      return duration.value / static_cast<double>(scale.tokens_per_sample);
    case Unit::steps:
    case Unit::seconds: break;
  }
  TRIREME_EXPECT(false);
  return 0;
}

std::int64_t steps_of(const Duration& duration, const StepScale& scale) {
  TRIREME_EXPECT(!duration.is_time());
  TRIREME_EXPECT(scale.samples_per_step > 0);
  const double steps = duration.unit == Unit::steps
                           ? duration.value
                           : steps_of_samples(samples_of(duration, scale), scale);
  validate(steps < 0x1p62, "\"{}\" exceeds 2^62 steps", to_string(duration));
  // A decimal fraction such as 0.07 has no exact binary form, so the quotient may exceed a whole
  // number by rounding (2^-53 = 1.1e-16 per operation). A relative excess up to 1e-12, at most half
  // a step, does not add a step.
  return static_cast<std::int64_t>(std::ceil(steps - std::min(1e-12 * steps, 0.5)));
}

std::int64_t steps_of_key(std::string_view key, const Duration& duration, const StepScale& scale) {
  try {
    return steps_of(duration, scale);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{} = {}", key, error.what()));
  }
}

}  // namespace trireme
