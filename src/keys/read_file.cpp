// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::keys {

namespace {

// Longest accepted file.
constexpr std::size_t max_file_bytes = 1 << 20;
// A generator behind `<(command)` may take its time; a pipe that nobody writes to must not hang.
constexpr int max_silence_seconds = 10;

/// Waits until a pipe has bytes or its writers are gone. Throws InputError if nothing happens.
void await_bytes(int file, const std::string& path) {
  pollfd wait{.fd = file, .events = POLLIN, .revents = 0};
  int ready = 0;
  do ready = ::poll(&wait, 1, max_silence_seconds * 1000);
  while (ready < 0 && errno == EINTR);
  validate(ready != 0, "{}: is a pipe to which nothing was written for {} s; give the deck's file",
           path, max_silence_seconds);
}

/// Reads a file or pipe from its beginning, at most `max_bytes` bytes. Throws InputError.
std::string read_beginning(const std::string& path, std::size_t max_bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  validate_path(file >= 0 ? 0 : errno, "{}: cannot be read: {}", path, std::strerror(errno));
  const auto close = [](const int* descriptor) { ::close(*descriptor); };
  const std::unique_ptr<const int, decltype(close)> closer(&file, close);
  struct stat status{};
  const bool is_pipe = ::fstat(file, &status) == 0 && S_ISFIFO(status.st_mode);
  if (!is_pipe) ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_NONBLOCK);  // a terminal
  std::string text(max_bytes, '\0');
  for (std::size_t bytes = 0;;) {
    if (is_pipe) await_bytes(file, path);
    const ssize_t got = ::read(file, text.data() + bytes, max_bytes - bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    validate_path(got >= 0 ? 0 : errno, "{}: cannot be read: {}", path, std::strerror(errno));
    bytes += static_cast<std::size_t>(got);
    if (got > 0 && bytes < max_bytes) continue;
    text.resize(bytes);
    return text;
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  // An error here is ignored: opening the file below reports the reason.
  std::error_code unreadable;
  validate(!std::filesystem::is_directory(path, unreadable),
           "{}: is a folder; give the deck's file", path);
  const std::string text = read_beginning(path, max_file_bytes + 1);
  validate(text.size() <= max_file_bytes,
           "{}: is longer than {} bytes, so it is not a deck; give a text file in TOML", path,
           max_file_bytes);
  return text;
}

}  // namespace trireme::keys
