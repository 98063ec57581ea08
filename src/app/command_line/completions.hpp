// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "command_description.hpp"

namespace trireme::app {

/// Returns the function of bash that completes command lines of the program: commands, options, and
/// the values of which the help lists the words. Other words are completed as names of files.
std::string bash_completion(const ProgramDescription& program);

/// Returns the same for zsh, as a file _trireme of a folder in $fpath.
std::string zsh_completion(const ProgramDescription& program);

}  // namespace trireme::app
