// SPDX-License-Identifier: Apache-2.0
//
// Text for messages: the nearest word to a misspelled one, the nearest valid numbers, untrusted
// text made printable, counts with their noun, and amounts of bytes and seconds. Used by all
// libraries.
#include "trireme/base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "trireme/base/utf8.hpp"

namespace trireme {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

/// Returns whether a terminal acts on this character instead of showing it. Separators of lines and
/// marks of the direction of writing, which can show text in another order, are among them.
bool is_control_character(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  const auto is_between = [&](std::string_view begin, std::string_view end) {
    return begin <= character && character <= end;
  };
  return is_between("\u0080", "\u009F") || character == "\u061C" ||
         is_between("\u200E", "\u200F") || is_between("\u2028", "\u202E") ||
         is_between("\u2066", "\u2069");
}

/// Returns the text with bytes that are not UTF-8, and control characters that are not in `kept`,
/// as \x0A.
std::string escape(std::string_view text, std::string_view kept) {
  std::string result;
  const auto add_escaped = [&](std::string_view bytes) {
    for (const char c : bytes) result += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
  };
  std::size_t valid_end = first_invalid_byte(text);
  for (std::size_t i = 0; i < text.size();) {
    if (i == valid_end) {
      add_escaped(text.substr(i++, 1));
      valid_end = i + first_invalid_byte(text.substr(i));
      continue;
    }
    std::size_t end = i + 1;
    while (end < valid_end && is_continuation_byte(text[end])) ++end;
    const std::string_view character = text.substr(i, end - i);
    if (is_control_character(character) && kept.find(character) == std::string_view::npos)
      add_escaped(character);
    else
      result += character;
    i = end;
  }
  return result;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<int> before_last(columns), last(columns), row(columns);
  for (std::size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < columns; ++j) {
      const int change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& choices) {
  const std::string wanted = lower(word);
  std::string best;
  int best_distance = 0;
  for (const std::string& choice : choices) {
    const int distance = edit_distance(wanted, lower(choice));
    // A third of the letters may differ. Two unrelated words are rarely that similar by chance.
    const int allowed = std::max(1, static_cast<int>(std::max(wanted.size(), choice.size()) / 3));
    const bool shortened = wanted.size() >= 3 && lower(choice).starts_with(wanted);
    const bool lengthened = choice.size() >= 4 && wanted.starts_with(lower(choice));
    if (distance > allowed && !shortened && !lengthened) continue;
    if (best.empty() || distance < best_distance) {
      best = choice;
      best_distance = distance;
    }
  }
  return best;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string_view take_line(std::string_view& text) {
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::string nearest_multiples(std::int64_t value, std::int64_t part) {
  const std::int64_t below = value / part * part;
  return below > 0 ? fmt::format("{} or {}", below, below + part) : fmt::format("{}", part);
}

std::int64_t largest_divisor(std::int64_t whole, std::int64_t limit) {
  std::int64_t divisor = std::clamp<std::int64_t>(limit, 1, whole);
  while (whole % divisor != 0) --divisor;
  return divisor;
}

std::string nearest_divisors(std::int64_t value, std::int64_t whole) {
  const std::int64_t below = largest_divisor(whole, value);
  std::int64_t above = value;
  while (above <= whole && whole % above != 0) ++above;
  return above > whole || above == below ? fmt::format("{}", below)
                                         : fmt::format("{} or {}", below, above);
}

std::string csv_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

std::string csv_cell(std::string_view text) {
  return text.find_first_of(",\"\r\n") == std::string_view::npos ? std::string(text)
                                                                 : csv_quoted(text);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    unsigned bits = 0;
    for (std::size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (j < group.size() ? static_cast<unsigned char>(group[j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      text += j <= group.size() ? digits[bits >> (18 - 6 * j) & 63u] : '=';
  }
  return text;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  const bool is_cut = text.size() > max_bytes;
  if (is_cut) text = text.substr(0, character_boundary(text, max_bytes));
  return escape(text, "") + (is_cut ? "..." : "");
}

std::string printable_lines(std::string_view text) { return escape(text, "\n\t"); }

std::string join_with_or(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

std::string counted(std::int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> units = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} {}", bytes, bytes == 1 ? "byte" : units[0]);
  return fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string format_flops(double flops) {
  constexpr std::array<const char*, 7> prefixes = {"", "K", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; flops >= 1000 && prefix + 1 < prefixes.size(); ++prefix) flops /= 1000;
  return fmt::format("{:.4g} {}FLOP", flops, prefixes[prefix]);
}

std::string format_energy(double joules) {
  constexpr double kilowatt_hour = 3.6e6;
  if (joules >= 1000 * kilowatt_hour)
    return fmt::format("{:.3g} MWh", joules / (1000 * kilowatt_hour));
  if (joules >= kilowatt_hour) return fmt::format("{:.3g} kWh", joules / kilowatt_hour);
  if (joules >= 1e6) return fmt::format("{:.3g} MJ", joules / 1e6);
  if (joules >= 1e3) return fmt::format("{:.3g} kJ", joules / 1e3);
  return fmt::format("{:.3g} J", joules);
}

std::string format_short_seconds(double seconds) {
  if (seconds >= 100) return format_seconds(seconds);
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

std::string format_seconds(double seconds) {
  constexpr double max_seconds = 1e15;
  if (!(seconds < max_seconds)) return "unknown";
  const long long total = std::llround(std::max(0.0, seconds));
  const long long days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{} d {} h", days, hours);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

}  // namespace trireme
