// SPDX-License-Identifier: Apache-2.0
#include "append_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"

namespace trireme::monitor {
namespace {

constexpr std::size_t max_pending_bytes = std::size_t{4} << 20;

// Returns the offset behind the last newline of the file, searching backward in blocks of 4096
// bytes.
std::int64_t end_of_last_line(int file, std::int64_t size, const std::string& path) {
  char buffer[4096];
  std::int64_t end = size;
  while (end > 0) {
    const std::int64_t begin =
        std::max<std::int64_t>(0, end - static_cast<std::int64_t>(sizeof buffer));
    const ssize_t got =
        ::pread(file, buffer, static_cast<std::size_t>(end - begin), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    ensure(got == end - begin, "cannot read {}: {}", path,
           got < 0 ? std::strerror(errno) : "it changed while it was read");
    for (std::int64_t i = got; i > 0; --i) {
      if (buffer[i - 1] == '\n') return begin + i;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

std::unique_ptr<AppendFile> AppendFile::open(const std::string& path, PlainFileUse use) {
  const int descriptor = open_plain_file(path, use);
  if (descriptor < 0) return nullptr;
  return std::unique_ptr<AppendFile>(new AppendFile(path, descriptor));
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::reopen() {
  const std::unique_ptr<AppendFile> anew = open(path_, PlainFileUse::append);
  anew->remove_incomplete_line();
  std::swap(descriptor_, anew->descriptor_);
}

void AppendFile::remove_incomplete_line() {
  struct stat status{};
  const bool known = ::fstat(descriptor_, &status) == 0;
  ensure(known, "cannot query the size of {}: {}", path_, std::strerror(errno));
  const std::int64_t whole = end_of_last_line(descriptor_, status.st_size, path_);
  const bool removed =
      whole >= status.st_size || ::ftruncate(descriptor_, static_cast<off_t>(whole)) == 0;
  ensure(removed, "cannot remove the incomplete last line of {}: {}", path_, std::strerror(errno));
}

std::size_t AppendFile::write_some(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      write_error_ =
          fmt::format("cannot write {} bytes to {}: {}", bytes.size() - done, path_,
                      written < 0 ? std::strerror(errno) : "the system accepted no bytes");
      return done;
    }
    done += static_cast<std::size_t>(written);
  }
  write_error_.clear();
  return done;
}

void AppendFile::append(std::string_view bytes) {
  if (pending_.empty()) {
    pending_ = bytes.substr(write_some(bytes));
    return;
  }
  pending_ += bytes;
  pending_.erase(0, write_some(pending_));
  ensure(pending_.size() <= max_pending_bytes, "{}", write_error_);
}

}  // namespace trireme::monitor
