// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "input_folder.hpp"
#include "readers.hpp"
#include "trireme/base/check.hpp"

namespace trireme::fuzz {

/// Writes a file in the folder of this process and returns its path.
inline std::string write_input(const std::string& bytes) {
  return InputFolder::of_process().write("input", bytes);
}

/// Throws a bug, for a result that contradicts another one.
inline void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// Returns whether `body` ends without an InputError.
template <class Body>
bool accepts(Body&& body) {
  try {
    body();
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Returns the readers of texts and tokens.
std::span<const Reader> token_readers();

}  // namespace trireme::fuzz
