// SPDX-License-Identifier: Apache-2.0
#pragma once

// Run-time checks whose message is an fmt format string. Files compiled by nvcc include error.hpp
// and expect.hpp instead, because nvcc cannot compile fmt 9.

#include <string>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/expect.hpp"

namespace trireme {

/// Checks the user's input, in every build type. Throws InputError (exit 2) if `holds` is false.
/// The message states the problem, why it matters, and a correct value.
template <class... Args>
void validate(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

/// Checks the machine and the libraries, in every build type. Throws Failure (exit 1) if `holds` is
/// false.
template <class... Args>
void ensure(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trireme
