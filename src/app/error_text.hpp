// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::app {

/// Returns an error message for the terminal: "trireme: error: ...". Leaves a message unchanged if
/// its lines name the place of each mistake ("deck.toml:17:9: ...", "--set a.b=c: ...").
std::string error_text(const std::string& message);

}  // namespace trireme::app
