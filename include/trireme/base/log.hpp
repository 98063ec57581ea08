#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace trireme {

/// The run's log: rank 0 speaks on the terminal (stderr) and in log.txt; other ranks are silent but
/// for error(). Made in main and passed down. Lines may be written from any thread.
class Log {
 public:
  /// `speaks`: whether info and warnings of this rank are shown (world rank 0).
  explicit Log(bool verbose = true);
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  /// Adds the file to write to as well (appended). Throws Failure where it cannot be opened.
  void open_file(const std::string& path);
  /// While a progress line moves on the terminal, it is cleared before each line of the log.
  void set_progress_active(bool active);

  template <class... Args>
  void info(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::info, fmt::format(f, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::warn, fmt::format(f, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> f, Args&&... args) {
    write(Level::error, fmt::format(f, std::forward<Args>(args)...));
  }
  void flush();

 private:
  enum class Level { info, warn, error };
  void write(Level level, const std::string& line);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
