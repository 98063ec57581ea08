// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::io {

/// A well-known form of files, which the path or the first bytes show.
struct FileForm {
  enum class Kind : std::uint8_t { gzip, packed, tar, npy, json, hdf5, other };
  Kind kind = Kind::other;
  std::string name;    ///< as in "a gzip file"
  std::string advice;  ///< how to make from it what Trireme reads
};

/// Returns the form of a file, folder or address: packed files, archives, arrays and objects of
/// Python, tables, records, databases, pointers of git-lfs, JSON. Returns none for every other
/// file, and for one that cannot be read. Readers call it for files that are not of their own form,
/// so that no other form is read as numbers or text, and to say in a message what a file is.
///
/// A sign of a form has at least three bytes and is thus hardly ever that of numbers.
std::optional<FileForm> recognize_form(const std::string& path);

/// The bytes at the beginning of a file that show its form.
inline constexpr std::int64_t form_bytes = 512;

/// Returns the form of the content of a file from its first `form_bytes` bytes, or all if it is
/// shorter. Does not recognize pickles, which need the end of the file.
std::optional<FileForm> recognize_content(std::string_view begin);

/// Returns ": it is NAME; ADVICE" for the end of a message, or "" for an unknown form.
std::string form_hint(const std::optional<FileForm>& form);

}  // namespace trireme::io
