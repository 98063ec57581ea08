#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::io {

/// A form of files that its first bytes show.
struct FileForm {
  enum class Kind : std::uint8_t { npy, gzip, other };
  Kind kind = Kind::other;
  std::string name;    ///< as in "a gzip file"
  std::string advice;  ///< how to make from it what Trireme reads
};

/// Returns the form of a file that begins as files of a well-known form do: packed files, archives,
/// arrays and objects of Python, tables. Returns none for every other file. A reader of files
/// without a form of their own calls it, so that no other form is read as numbers or text.
///
/// A sign has at least three bytes and is thus hardly ever that of numbers. Throws the errors of
/// File.
std::optional<FileForm> recognize_form(const std::string& path);

}  // namespace trireme::io
