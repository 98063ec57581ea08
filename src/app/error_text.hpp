// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::app {

/// Returns an error message for the terminal: "trireme: error: ...". Leaves a message unchanged if
/// its lines name the place of each mistake ("deck.toml:17:9: ...", "--set a.b=c: ...").
std::string error_text(const std::string& message);

/// Prints a line to standard error. One that cannot be written is lost: it must not end the program
/// in another way than its exit code says.
void print_error(const std::string& line);

}  // namespace trireme::app
