// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/message_text.hpp"

#include <cstddef>

#include "trireme/base/text.hpp"

namespace trireme {

std::string printable_message(std::string_view text, bool (*is_line)(std::string_view line)) {
  const std::string lines = printable_lines(text);
  std::string message;
  for (std::size_t begin = 0;;) {
    const std::size_t end = lines.find('\n', begin);
    message += lines.substr(begin, end - begin);
    if (end == std::string::npos) return message;
    begin = end + 1;
    const std::string_view next =
        std::string_view(lines).substr(begin, lines.find('\n', begin) - begin);
    const bool is_kept = next.starts_with("  ") || (is_line != nullptr && is_line(next));
    message += is_kept ? "\n" : "\\x0A";
  }
}

}  // namespace trireme
