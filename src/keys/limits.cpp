// SPDX-License-Identifier: Apache-2.0
//
// Checks of untrusted text before toml++ parses it: depth of keys, UTF-8, length of messages.
#include "limits.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/base/utf8.hpp"

namespace trireme::keys {

namespace {

/// Returns the position after the TOML string that begins at `i`. Adds the lines in it to `line`.
std::size_t skip_string(std::string_view text, std::size_t i, std::size_t& line) {
  const char quote = text[i];
  const std::string three(3, quote);
  const bool multiline = text.substr(i, 3) == three;
  i += multiline ? 3 : 1;
  while (i < text.size()) {
    if (text[i] == '\n') {
      if (!multiline) return i;
      ++line;
    }
    if (quote == '"' && text[i] == '\\' && i + 1 < text.size() && text[i + 1] != '\n') {
      i += 2;
    } else if (!multiline && text[i] == quote) {
      return i + 1;
    } else if (multiline && text.substr(i, 3) == three) {
      i += 3;
      // The closing quotes may follow up to two quotes of the text.
      for (int more = 0; more < 2 && i < text.size() && text[i] == quote; ++more) ++i;
      return i;
    } else {
      ++i;
    }
  }
  return text.size();
}

}  // namespace

std::size_t line_of_deep_key(std::string_view text) {
  std::size_t line = 1;
  int parts = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = skip_string(text, i, line);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '\n') ++line;
    if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) parts = 1;
    if (c == '.' && ++parts > max_key_parts) return line;
    ++i;
  }
  return 0;
}

namespace {

/// Returns the end of the part of a message that begins at `begin`: a value in double quotes, a
/// word, or a space or newline. A quote that no other follows is a word; then `has_values` becomes
/// false, and quotes behind it are not searched again.
std::size_t end_of_part(std::string_view message, std::size_t begin, bool& has_values) {
  constexpr std::string_view spaces = " \n";
  if (spaces.find(message[begin]) != std::string_view::npos) return begin + 1;
  std::size_t i = begin + 1;
  if (message[begin] == '"' && has_values) {
    for (; i < message.size() && message[i] != '"'; ++i)
      if (message[i] == '\\') ++i;
    if (i < message.size()) return i + 1;
    has_values = false;
    i = begin + 1;
  }
  while (i < message.size() && message[i] != '"' &&
         spaces.find(message[i]) == std::string_view::npos)
    ++i;
  return i;
}

}  // namespace

std::string shorten_message(const std::string& message) {
  constexpr std::size_t max_bytes = 2000, max_value_bytes = 80;
  if (message.size() <= max_bytes) return message;
  std::string shorter;
  bool has_values = true;
  for (std::size_t begin = 0; begin < message.size();) {
    const std::size_t end = end_of_part(message, begin, has_values);
    const std::string_view part = std::string_view(message).substr(begin, end - begin);
    if (part.size() > max_value_bytes)
      shorter +=
          fmt::format("{}...{}", part.substr(0, character_boundary(part, max_value_bytes)),
                      part.back() == '"' || part.back() == ':' ? part.substr(part.size() - 1) : "");
    else
      shorter += part;
    begin = end;
  }
  if (shorter.size() <= max_bytes) return shorter;
  return shorter.substr(0, character_boundary(shorter, max_bytes)) + "...";
}

}  // namespace trireme::keys
