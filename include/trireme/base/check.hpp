// SPDX-License-Identifier: Apache-2.0
#pragma once

// Run-time checks whose message is an fmt format string. Files compiled by nvcc include error.hpp
// and expect.hpp instead, because nvcc cannot compile fmt 9.

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/expect.hpp"

namespace trireme {

/// Throws InputError or Failure with a formatted message. Compiled once, for all callers below.
[[noreturn, gnu::cold]] void throw_input_error(fmt::string_view format, fmt::format_args args);
[[noreturn, gnu::cold]] void throw_failure(fmt::string_view format, fmt::format_args args);

/// Checks the user's input, in every build type. Throws InputError (exit 2) if `holds` is false.
/// The message states the problem, why it matters, and a correct value.
template <class... Args>
void validate(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw_input_error(format, fmt::make_format_args(args...));
}

/// Checks the machine and the libraries, in every build type. Throws Failure (exit 1) if `holds` is
/// false.
template <class... Args>
void ensure(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw_failure(format, fmt::make_format_args(args...));
}

}  // namespace trireme
