// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/error.hpp"

namespace trireme {

/// Returns whether a path is an address such as "s3://bucket/name".
bool is_address(std::string_view path);

/// The end of a message about an address as output.
inline constexpr const char* address_advice =
    "is an address, not a path; name a path on a file system that the nodes can write, and copy "
    "the files from there";

/// Throws InputError if the path of an output is an address: folders of these names would be made.
/// `where` names the option: "--out s3://bucket/name".
void reject_address(std::string_view where, std::string_view path);

/// Checks the errno of a call that names a path of the user; 0 is no error. Throws InputError
/// (exit 2) if another path could succeed, and Failure (exit 1) if the machine failed: no free
/// descriptor, memory or space, or a disk error.
template <class... Args>
void validate_path(int error, fmt::format_string<Args...> format, Args&&... args) {
  if (error == 0) return;
  const std::string message = fmt::format(format, std::forward<Args>(args)...);
  if (is_path_error(error)) throw InputError(message);
  throw Failure(message);
}

}  // namespace trireme
