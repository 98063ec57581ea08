// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace trireme {

/// The log of a run. Rank 0 writes to the terminal (stderr) and to log.txt; other ranks write only
/// errors and reports. main() creates it and passes it down. Any thread may write a line.
class Log {
 public:
  /// `verbose`: whether this rank writes info lines and warnings (world rank 0 does).
  explicit Log(bool verbose = true);
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  /// Appends every later line to this file too. Throws the errors of open_plain_file().
  void open_file(const std::string& path);
  /// Opens the file anew if it was removed or replaced, and returns whether it was. Throws Failure.
  bool reopen_if_removed();
  /// Writes no more lines to the file: it belongs to another job from now on.
  void close_file();
  /// While a progress line is on the terminal, write() clears that line before each log line.
  void set_progress_active(bool active);

  template <class... Args>
  void info(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::info, f, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::warn, f, fmt::make_format_args(args...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::error, f, fmt::make_format_args(args...));
  }
  /// Writes an error to the file alone, for a terminal that gets it in another form.
  void record_error(const std::string& message);
  /// Writes an info line on every rank.
  template <class... Args>
  void report(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::report, f, fmt::make_format_args(args...));
  }
  /// Flushes stderr and the file, and waits until the file is on the disk (fsync).
  void flush();

 private:
  enum class Level { info, warn, error, report };
  void write(Level level, fmt::string_view format, fmt::format_args args);
  void append_to_file(const std::string& line);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
