#pragma once

// Checks whose message is a format string. What nvcc compiles takes error.hpp and expect.hpp
// instead: fmt 9 does not compile there.

#include <string>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/expect.hpp"

namespace trireme {

/// Checks what came from outside (always on). The message says the problem, why it matters and what
/// would be right. Throws InputError.
template <class... Args>
void validate(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

/// Checks what the machine or a library did (always on). Throws Failure.
template <class... Args>
void ensure(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trireme
