// SPDX-License-Identifier: Apache-2.0
//
// The form of an error message on the terminal.
#include "error_text.hpp"

#include <cctype>
#include <string_view>

#include "trireme/base/text.hpp"

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

/// Returns whether the line starts with "--set key=...": its key names the place.
bool is_override(std::string_view line) {
  constexpr std::string_view option = "--set ";
  if (!line.starts_with(option)) return false;
  const std::string_view rest = line.substr(option.size());
  const std::size_t equals = rest.find('=');
  return equals != std::string_view::npos && equals > 0 && rest.find(' ') > equals;
}

}  // namespace

std::string error_text(const std::string& raw_message) {
  const std::string message = printable_lines(raw_message);
  const std::string_view line = std::string_view(message).substr(0, message.find('\n'));
  const std::size_t colon = line.find(':');
  const bool names_a_table = colon != std::string_view::npos && line.substr(colon, 3) == ": [";
  return is_override(line) || has_line_and_column(line) || names_a_table
             ? message
             : "trireme: error: " + message;
}

}  // namespace trireme::app
