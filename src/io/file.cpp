// SPDX-License-Identifier: Apache-2.0
//
// Files, atomic replacement and durable renames on POSIX.
//
// A durable replacement has four steps, and the order matters: write the temporary file, fsync()
// it, rename() it, fsync() the folder. Errors of the path become InputError, all others Failure
// (see base/error.hpp). Checkpoints, datasets, decks, leases and environment.json go through this
// file.

#include "trireme/io/file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"

namespace trireme::io {
namespace {

const char* errno_text(int error) { return std::strerror(error); }

[[noreturn]] void throw_path_error(int error, const std::string& message) {
  if (is_path_error(error)) throw InputError(message);
  throw Failure(message);
}

int open_flags(File::Mode mode) {
  switch (mode) {
    case File::Mode::read:
      // O_NONBLOCK: a pipe without a writer is refused at once instead of blocking.
      return O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    case File::Mode::read_own: return 0;  // open_plain_file() has its own
    case File::Mode::create: return O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
    case File::Mode::create_new: return O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    case File::Mode::update: return O_RDWR | O_CLOEXEC;
  }
  return 0;
}

std::string text_of(const File& file, std::int64_t max_bytes) {
  const std::int64_t bytes = file.size();
  validate(bytes <= max_bytes, "{}: has {} bytes, more than the limit of {} for such a file",
           file.path(), bytes, max_bytes);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read_at(0, text.data(), bytes);
  return text;
}

int sync_descriptor(int descriptor) {
  int result = 0;
  do result = ::fsync(descriptor);
  while (result != 0 && errno == EINTR);
  return result;
}

/// Returns a message about a temporary file as one about the file that it would become.
std::string with_final_name(std::string message, const std::string& temporary,
                            const std::string& path) {
  const std::string rename = fmt::format("{}: cannot be renamed to {}", temporary, path);
  if (message.starts_with(rename))
    message.replace(0, rename.size(), path + ": cannot be replaced");
  else if (message.starts_with(temporary))
    message.replace(0, temporary.size(), path);
  return message;
}

}  // namespace

bool links_unsupported(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

File::File(const std::string& path, Mode mode) : path_(path) {
  if (mode == Mode::read_own) {
    descriptor_ = open_plain_file(path, PlainFileUse::read);
    return;
  }
  do descriptor_ = ::open(path.c_str(), open_flags(mode), 0666);
  while (descriptor_ < 0 && errno == EINTR);
  const int error = errno;
  if (descriptor_ < 0) {
    const bool creates = mode == Mode::create || mode == Mode::create_new;
    const std::string message = fmt::format("{}: cannot be {}: {}", path,
                                            creates ? "created" : "opened", errno_text(error));
    validate(mode != Mode::create_new || error != EEXIST, "{}", message);
    throw_path_error(error, message);
  }
  if (mode != Mode::read) return;
  struct stat status{};
  if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) return;
  // The destructor does not run after a throw in the constructor.
  ::close(std::exchange(descriptor_, -1));
  throw InputError(fmt::format("{}: is {}, but must be a file", path,
                               S_ISDIR(status.st_mode) ? "a folder" : "a pipe or a device"));
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileStamp File::stamp() const {
  struct stat status{};
  const bool known = ::fstat(descriptor_, &status) == 0;
  ensure(known, "{}: {}", path_, errno_text(errno));
  return {static_cast<std::int64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

void File::read_at(std::int64_t offset, void* data, std::int64_t bytes) const {
  char* out = static_cast<char*>(data);
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(descriptor_, out + done, static_cast<std::size_t>(bytes - done),
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Failure(fmt::format("{}: cannot read {} bytes at offset {}: {}", path_, bytes, offset,
                                errno_text(errno)));
    if (got == 0)
      throw InputError(
          fmt::format("{}: ends at byte {}, but bytes {} to {} are needed: the file is truncated",
                      path_, size(), offset, offset + bytes));
    done += got;
  }
}

void File::read_ahead(std::int64_t offset, std::int64_t bytes) const {
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_WILLNEED);
}

void File::drop_from_page_cache() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

void File::write_at(std::int64_t offset, const void* data, std::int64_t bytes) const {
  const char* in = static_cast<const char*>(data);
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t put = ::pwrite(descriptor_, in + done, static_cast<std::size_t>(bytes - done),
                                 static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0)
      throw Failure(fmt::format("{}: cannot write {} bytes at offset {}: {}", path_, bytes, offset,
                                errno_text(errno)));
    done += put;
  }
}

void File::check_free_space(std::int64_t bytes) const {
  int error = 0;
  do error = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  while (error == EINTR);
  if (::ftruncate(descriptor_, 0) != 0 && error == 0) error = errno;
  const bool unknown = error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
  ensure(error == 0 || unknown, "{}: no space for {} bytes: {}", path_, bytes, errno_text(error));
}

void File::sync() const {
  const bool done = sync_descriptor(descriptor_) == 0;
  ensure(done, "{}: cannot be flushed to the disk: {}", path_, errno_text(errno));
}

void File::close() {
  if (descriptor_ < 0) return;
  const int result = ::close(std::exchange(descriptor_, -1));
  ensure(result == 0 || errno == EINTR, "{}: cannot be closed: {}", path_, errno_text(errno));
}

bool begins_with(const std::string& path, std::string_view bytes) {
  std::string start(bytes.size(), '\0');
  return std::ifstream(path, std::ios::binary)
             .read(start.data(), static_cast<std::streamsize>(start.size())) &&
         start == bytes;
}

std::string read_text_file(const std::string& path, std::int64_t max_bytes) {
  return text_of(File(path, File::Mode::read), max_bytes);
}

std::string read_own_text_file(const std::string& path, std::int64_t max_bytes) {
  return text_of(File(path, File::Mode::read_own), max_bytes);
}

StagedFile::StagedFile(std::string path, const std::string& suffix)
    : path_(std::move(path)), temporary_(path_ + suffix) {
  ::unlink(temporary_.c_str());
}

StagedFile::~StagedFile() {
  if (!keeps_) ::unlink(temporary_.c_str());
}

void StagedFile::commit() {
  sync_file(temporary_);
  rename_durably(temporary_, path_);
  keeps_ = true;
}

std::string unique_suffix() {
  return fmt::format("{}{}-{:08x}", StagedFile::default_suffix, ::getpid(), std::random_device{}());
}

void copy_file(const std::string& from, const std::string& to) {
  constexpr std::int64_t block_bytes = std::int64_t{1} << 20;
  const File source(from, File::Mode::read);
  File copy(to, File::Mode::create);
  const std::int64_t bytes = source.size();
  copy.check_free_space(bytes);
  std::vector<char> block(static_cast<std::size_t>(std::min(bytes, block_bytes)));
  for (std::int64_t at = 0; at < bytes; at += block_bytes) {
    const std::int64_t count = std::min(block_bytes, bytes - at);
    source.read_at(at, block.data(), count);
    copy.write_at(at, block.data(), count);
  }
  copy.close();
}

void copy_permissions(const std::string& from, const std::string& to) {
  struct stat given{};
  if (::stat(from.c_str(), &given) != 0) return;
  if (::chown(to.c_str(), static_cast<uid_t>(-1), given.st_gid) == 0)
    static_cast<void>(::chmod(to.c_str(), given.st_mode & 0777));
}

void replace_file(const std::string& path, std::string_view text) {
  // Two jobs may renew a lease at the same time, so the process number makes the name unique.
  StagedFile staged(path, fmt::format("{}{}", StagedFile::default_suffix, ::getpid()));
  try {
    // The name is free now. A link that somebody puts there is not followed.
    File file(staged.temporary(), File::Mode::create_new);
    file.write_at(0, text.data(), static_cast<std::int64_t>(text.size()));
    file.close();
    // A file that a group shares stays one.
    copy_permissions(path, staged.temporary());
    staged.commit();
  } catch (const InputError& error) {
    throw InputError(with_final_name(error.what(), staged.temporary(), path));
  } catch (const Failure& failure) {
    throw Failure(with_final_name(failure.what(), staged.temporary(), path));
  }
}

void sync_file(const std::string& path) { File(path, File::Mode::read).sync(); }

void rename_durably(const std::string& from, const std::string& to) {
  const bool done = ::rename(from.c_str(), to.c_str()) == 0;
  const int error = errno;
  if (!done)
    throw_path_error(error,
                     fmt::format("{}: cannot be renamed to {}: {}", from, to, errno_text(error)));
  const std::string folder = std::filesystem::path(to).parent_path().string();
  sync_folder(folder.empty() ? "." : folder);
}

std::string free_name(const std::string& path) {
  std::string name = path;
  for (int i = 2; is_there(name); ++i) name = fmt::format("{}.{}", path, i);
  return name;
}

std::string rename_aside(const std::string& path, const std::string& suffix) {
  const std::string name = free_name(path + suffix);
  rename_durably(path, name);
  return name;
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ensure(descriptor >= 0, "{}: {}", folder, errno_text(errno));
  const int result = sync_descriptor(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems cannot flush a folder.
  ensure(result == 0 || error == EINVAL || error == ENOTSUP,
         "{}: cannot be flushed to the disk: {}", folder, errno_text(error));
}

std::int64_t raise_open_file_limit(std::int64_t files) {
  constexpr rlim_t others = 256;  // libraries, MPI's sockets, logs
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return files;
  const rlim_t wanted = static_cast<rlim_t>(files) + others;
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted) return files;
  limit.rlim_cur =
      limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= wanted ? wanted : limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::getrlimit(RLIMIT_NOFILE, &limit);
  // A low limit is shared: a part for the files, the rest for others.
  const auto allowed = static_cast<std::int64_t>(limit.rlim_cur);
  return std::clamp<std::int64_t>(
      std::max(allowed - static_cast<std::int64_t>(others), allowed / 4), 1, files);
}

std::int64_t free_bytes(const std::string& path) {
  struct statvfs status{};
  const bool known = ::statvfs(path.c_str(), &status) == 0;
  ensure(known, "{}: {}", path, errno_text(errno));
  const __int128 bytes =
      static_cast<__int128>(status.f_bavail) * static_cast<__int128>(status.f_frsize);
  constexpr std::int64_t max_value = std::numeric_limits<std::int64_t>::max();
  return bytes > max_value ? max_value : static_cast<std::int64_t>(bytes);
}

}  // namespace trireme::io
