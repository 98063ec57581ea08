#include "trireme/base/plain_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme {
namespace {

const char* kind_of_mode(mode_t mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISLNK(mode)) return "a link";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

int open_flags(PlainFileUse use) {
  // O_NONBLOCK has no effect on regular files; a pipe returns at once instead of waiting.
  const int common = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  switch (use) {
    case PlainFileUse::read: return common | O_RDONLY;
    case PlainFileUse::append: return common | O_RDWR | O_APPEND | O_CREAT;
    case PlainFileUse::append_new: return common | O_RDWR | O_APPEND | O_CREAT | O_EXCL;
  }
  return common;
}

void validate_kind(const std::string& path, const std::string& kind) {
  validate(kind.empty(), "{}: is {}, but must be a regular file; remove it", path, kind);
}

}  // namespace

std::string other_kind_of_file(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 ? kind_of_mode(status.st_mode) : "";
}

bool is_there(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0;
}

bool names_open_file(const std::string& path, int descriptor) {
  struct stat named{}, open{};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

int open_plain_file(const std::string& path, PlainFileUse use) {
  int descriptor = -1;
  do descriptor = ::open(path.c_str(), open_flags(use), 0666);
  while (descriptor < 0 && errno == EINTR);
  const int error = errno;
  if (descriptor < 0 && error == EEXIST && use == PlainFileUse::append_new) return -1;
  if (descriptor < 0) {
    validate_kind(path, other_kind_of_file(path));
    validate(!is_path_error(error), "{}: cannot be opened: {}", path, std::strerror(error));
    throw Failure(fmt::format("{}: cannot be opened: {}", path, std::strerror(error)));
  }
  struct stat status{};
  const char* const kind =
      ::fstat(descriptor, &status) == 0 ? kind_of_mode(status.st_mode) : "a device";
  if (*kind != '\0') {
    ::close(descriptor);
    validate_kind(path, kind);
  }
  return descriptor;
}

}  // namespace trireme
