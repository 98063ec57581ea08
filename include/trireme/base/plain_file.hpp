// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// Returns the kind of a path that is neither missing nor a regular file: "a link", "a folder",
/// "a pipe", "a socket" or "a device". Returns "" for a missing or regular file. Follows no link.
std::string other_kind_of_file(const std::string& path);

/// Returns whether a path exists, also as a link to nothing.
bool is_there(const std::string& path);

/// Returns whether a path still names an open file. It does not after the file was removed or
/// renamed, or after another one got its name.
bool names_open_file(const std::string& path, int descriptor);

/// How open_plain_file() opens a file.
enum class PlainFileUse : std::uint8_t {
  read,
  append,     ///< for reading and appending; creates a missing file
  append_new  ///< for reading and appending; the file must not exist
};

/// Opens a file of a folder in which other users may write, and returns its descriptor. Only a
/// regular file is opened: a link could lead to any file of this user, and a pipe would block.
///
/// A file that has other names too (hard links: a backup by `cp -al`, or any file of this user) is
/// replaced by a copy before it is appended to, so that the other names keep their content.
///
/// Returns -1 if the file exists and the use is `append_new`. Throws InputError for another kind of
/// file and for a wrong path, Failure for every other error.
int open_plain_file(const std::string& path, PlainFileUse use);

}  // namespace trireme
