// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace trireme {

/// Returns a message for the terminal and the log, with what printable_lines() escapes, and line
/// feeds of untrusted names as \x0A. A line feed remains only if the next line begins with two
/// spaces, as those of lists in messages do, or if `is_line` says so. So no name of a file can
/// forge a message.
std::string printable_message(std::string_view text,
                              bool (*is_line)(std::string_view line) = nullptr);

}  // namespace trireme
