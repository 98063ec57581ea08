// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "command_description.hpp"

namespace trireme::app {

/// A file of man's section 1: "trireme-train.1" and its text in man(7) macros.
struct ManPage {
  std::string name, text;
};

/// Returns a page for the program and one for each command. `version`: of the program, "0.1.0".
std::vector<ManPage> man_pages(const ProgramDescription& program, const std::string& version);

}  // namespace trireme::app
