// SPDX-License-Identifier: Apache-2.0
//
// The log of a run: lines for the terminal, and the same lines with their time for log.txt.
//
// Any thread writes lines; a mutex keeps them whole. The recorder of src/train opens the file anew
// if it was removed, and a lost lease closes it.

#include "trireme/base/log.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/message_text.hpp"
#include "trireme/base/plain_file.hpp"

namespace trireme {

struct Log::State {
  explicit State(bool verbose_) : verbose(verbose_) {}
  ~State() {
    if (file) std::fclose(file);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::mutex mutex;
  bool verbose;
  bool progress_active = false;
  std::FILE* file = nullptr;
  std::string path;  ///< of `file`
};

Log::Log(bool verbose) : state_(std::make_unique<State>(verbose)) {}
Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

void Log::open_file(const std::string& path) {
  const int descriptor = open_plain_file(path, PlainFileUse::append);
  std::FILE* file = ::fdopen(descriptor, "a");
  if (file == nullptr) ::close(descriptor);
  ensure(file != nullptr, "{}: cannot be opened: {}", path, std::strerror(errno));
  const std::lock_guard lock(state_->mutex);
  if (state_->file) std::fclose(state_->file);
  state_->file = file;
  state_->path = path;
}

bool Log::reopen_if_removed() {
  std::string path;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->file || names_open_file(state_->path, fileno(state_->file))) return false;
    path = state_->path;
  }
  open_file(path);
  return true;
}

void Log::close_file() {
  const std::lock_guard lock(state_->mutex);
  if (state_->file) std::fclose(std::exchange(state_->file, nullptr));
}

void Log::set_progress_active(bool active) {
  const std::lock_guard lock(state_->mutex);
  state_->progress_active = active;
}

void Log::write(Level level, fmt::string_view format, fmt::format_args args) {
  if (!state_->verbose && (level == Level::info || level == Level::warn)) return;
  const std::string line = printable_message(fmt::vformat(format, args));
  const char* prefix = level == Level::warn ? "warning: " : level == Level::error ? "error: " : "";
  const std::lock_guard lock(state_->mutex);
  // One fwrite() for each line, so that lines of several ranks on a shared terminal do not mix.
  const std::string text =
      fmt::format("{}{}{}\n", state_->progress_active ? "\r\033[K" : "", prefix, line);
  std::fwrite(text.data(), 1, text.size(), stderr);
  append_to_file(prefix + line);
}

void Log::record_error(const std::string& message) {
  const std::lock_guard lock(state_->mutex);
  append_to_file("error: " + printable_message(message));
}

/// Called with the mutex held.
void Log::append_to_file(const std::string& line) {
  if (!state_->file) return;
  const std::string stamped = fmt::format("{} {}\n", utc_timestamp(), line);
  std::fwrite(stamped.data(), 1, stamped.size(), state_->file);
  std::fflush(state_->file);
}

void Log::flush() {
  const std::lock_guard lock(state_->mutex);
  std::fflush(stderr);
  if (!state_->file) return;
  std::fflush(state_->file);
  ::fsync(fileno(state_->file));
}

}  // namespace trireme
