// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/base/plain_file.hpp"

namespace trireme::monitor {

/// A file that only grows, for metrics.jsonl and event files. Keeps bytes in memory while the disk
/// is full or fails. Errors are thrown as Failure with the path.
///
///   append(a)   the disk takes a
///   append(b)   the disk is full: b is kept, write_error() returns the reason
///   append(c)   the disk takes b and c, write_error() is empty again
class AppendFile {
 public:
  /// Opens the file with open_plain_file() for `append` or `append_new`, and throws its errors.
  /// Returns null if the file exists and must not.
  static std::unique_ptr<AppendFile> open(const std::string& path, PlainFileUse use);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Removes the bytes after the last newline: a line that an earlier process did not finish.
  /// Throws Failure.
  void remove_incomplete_line();
  /// Appends with one write, or more if the system accepts only a part. Bytes that the disk does
  /// not accept are kept and written first the next time. Throws Failure if more than 4 MiB are
  /// kept.
  void append(std::string_view bytes);
  /// Returns whether the path names this file no more: it was removed or replaced.
  bool is_removed() const { return !names_open_file(path_, descriptor_); }
  /// Opens the path anew; creates the file if it is missing. Bytes that are kept stay. Throws
  /// Failure.
  void reopen();
  /// Returns why bytes are kept; empty if all bytes are written.
  const std::string& write_error() const { return write_error_; }

 private:
  AppendFile(const std::string& path, int descriptor) : path_(path), descriptor_(descriptor) {}
  /// Returns how many of the bytes the system accepted. If not all, sets `write_error_`.
  std::size_t write_some(std::string_view bytes);
  std::string path_, pending_, write_error_;
  int descriptor_;
};

}  // namespace trireme::monitor
