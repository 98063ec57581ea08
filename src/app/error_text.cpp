// SPDX-License-Identifier: Apache-2.0
//
// The form of an error message on the terminal, and its way there.
#include "error_text.hpp"

#include <cctype>
#include <cstdio>
#include <string_view>

#include "trireme/base/message_text.hpp"

namespace trireme::app {
namespace {

/// Returns whether the line contains a place like "file:17:9: ".
bool has_line_and_column(std::string_view line) {
  for (std::size_t colon = line.find(':'); colon != std::string_view::npos;
       colon = line.find(':', colon + 1)) {
    std::size_t at = colon;
    int numbers = 0;
    while (numbers < 2 && at < line.size() && line[at] == ':') {
      const std::size_t begin = ++at;
      while (at < line.size() && std::isdigit(static_cast<unsigned char>(line[at])) != 0) ++at;
      if (at == begin) break;
      ++numbers;
    }
    if (numbers == 2 && line.substr(at, 2) == ": ") return true;
  }
  return false;
}

/// Returns whether the line starts with "--set key=..." or "--unset key: ...": its key names the
/// place.
bool is_override(std::string_view line) {
  constexpr std::string_view option = "--set ";
  if (line.starts_with("--unset ")) return true;
  if (!line.starts_with(option)) return false;
  const std::string_view rest = line.substr(option.size());
  const std::size_t equals = rest.find('=');
  return equals != std::string_view::npos && equals > 0 && rest.find(' ') > equals;
}

/// Returns whether the line names the place of a mistake.
bool names_place(std::string_view line) {
  const std::size_t colon = line.find(':');
  const bool names_a_table = colon != std::string_view::npos && line.substr(colon, 3) == ": [";
  return is_override(line) || has_line_and_column(line) || names_a_table;
}

}  // namespace

std::string error_text(const std::string& raw_message) {
  const bool has_place =
      names_place(std::string_view(raw_message).substr(0, raw_message.find('\n')));
  // Only a list of mistakes has several lines that name places.
  const std::string message = printable_message(raw_message, has_place ? names_place : nullptr);
  return has_place ? message : "trireme: error: " + message;
}

void print_error(const std::string& line) {
  const std::string text = line + '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace trireme::app
