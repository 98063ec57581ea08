// SPDX-License-Identifier: Apache-2.0
//
// Opens files of a folder in which other users may write. Links are refused, pipes are not waited
// for, and a file with several names (hard links) is appended to under this name alone.
#include "trireme/base/plain_file.hpp"

#include <algorithm>
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

/// Copies all bytes of a file. Returns false, with errno, if that fails.
bool copy_bytes(int from, int to) {
  char block[1 << 16];
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(from, block, sizeof block, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = ::write(to, block + done, static_cast<std::size_t>(got - done));
      if (put < 0 && errno != EINTR) return false;
      done += std::max<ssize_t>(put, 0);
    }
    at += got;
  }
}

/// Gives the path a copy of its file, with the same permissions, and returns the open copy. The
/// other names of the file keep what it holds now.
int open_own_copy(const std::string& path, int shared, const struct stat& status) {
  const std::string temporary = path + ".own";
  ::unlink(temporary.c_str());
  const int own = ::open(temporary.c_str(), open_flags(PlainFileUse::append_new), 0600);
  const bool is_copied = own >= 0 && copy_bytes(shared, own) &&
                         ::fchmod(own, status.st_mode & 0777) == 0 && ::fsync(own) == 0 &&
                         ::rename(temporary.c_str(), path.c_str()) == 0;
  const int error = errno;
  ::close(shared);
  if (is_copied) return own;
  if (own >= 0) ::close(own);
  ::unlink(temporary.c_str());
  throw Failure(
      fmt::format("{}: has {} names (hard links) and cannot be copied, so that only this "
                  "one is written: {}",
                  path, status.st_nlink, std::strerror(error)));
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
  if (use == PlainFileUse::append && status.st_nlink > 1)
    return open_own_copy(path, descriptor, status);
  return descriptor;
}

}  // namespace trireme
