// SPDX-License-Identifier: Apache-2.0
#include "printed_value.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace trireme::data {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// Removes the quotes around a text, and the letter of Python before them. Returns false if there
/// are none.
bool take_quotes(std::string_view& text) {
  std::string_view inside = text;
  if (inside.size() > 2 && std::string_view("bBrRuU").find(inside[0]) != std::string_view::npos)
    inside.remove_prefix(1);
  if (inside.size() < 2 || (inside[0] != '"' && inside[0] != '\'') || inside.back() != inside[0])
    return false;
  const char quote = inside[0];
  inside = inside.substr(1, inside.size() - 2);
  if (inside.empty() || inside.find(quote) != std::string_view::npos) return false;
  text = inside;
  return true;
}

/// Removes the brackets around a text, the name of a call before them, and named arguments after
/// the first. Returns false if there are none.
bool take_brackets(std::string_view& text) {
  constexpr std::string_view opening = "([{", closing = ")]}";
  const std::size_t open = text.find_first_of(opening);
  if (open == std::string_view::npos || text.back() != closing[opening.find(text[open])])
    return false;
  const std::string_view name = text.substr(0, open);
  const bool is_call =
      text[open] == '(' && std::all_of(name.begin(), name.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
      });
  if (!name.empty() && !is_call) return false;
  text = text.substr(open + 1, text.size() - open - 2);
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos) return true;
  const std::string_view rest = text.substr(comma + 1);
  if (trimmed(rest).empty() || rest.find('=') != std::string_view::npos)
    text = text.substr(0, comma);
  return true;
}

}  // namespace

bool is_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error != std::errc::invalid_argument && stopped == end;
}

bool is_printed_value(std::string_view word) {
  std::string_view text = trimmed(word);
  if (take_quotes(text)) return true;
  bool is_wrapped = false;
  while (take_brackets(text) || take_quotes(text)) {
    is_wrapped = true;
    text = trimmed(text);
    if (text.empty()) return false;
  }
  return is_wrapped && is_number(text);
}

}  // namespace trireme::data
