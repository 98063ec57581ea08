// SPDX-License-Identifier: Apache-2.0
//
// A lock by flock() that never hangs.
//
// A network file system asks a server for the lock, and may wait for its answer without limit. So a
// thread makes the calls; the constructor waits for it with a limit. A thread that was given up
// releases the lock if it gets it later.

#include "trireme/io/file_lock.hpp"

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::io {
namespace {

/// The report of one constructor's thread.
struct Attempt {
  FileLock::What what;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false, given_up = false;
  int descriptor = -1;                 ///< of the open file; it is locked if lock_error is 0
  int open_error = 0, lock_error = 0;  ///< errno
};

/// Opens and locks the file. Tries for `seconds` while another process holds the lock.
void try_to_lock(const std::string& path, double seconds, Attempt& attempt) {
  const double end = monotonic_seconds() + seconds;
  const bool is_folder = attempt.what == FileLock::What::folder;
  int descriptor = ::open(
      path.c_str(), (is_folder ? O_RDONLY | O_DIRECTORY : O_RDWR | O_CREAT) | O_CLOEXEC, 0666);
  int open_error = descriptor < 0 ? errno : 0;
  // The lock file of another user can be locked, too.
  if (open_error == EACCES && !is_folder) descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) open_error = 0;
  int lock_error = 0;
  while (descriptor >= 0) {
    lock_error = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (lock_error == EINTR) continue;
    if (lock_error != EWOULDBLOCK || monotonic_seconds() > end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::lock_guard lock(attempt.mutex);
  if (attempt.given_up && descriptor >= 0) ::close(descriptor);
  attempt.descriptor = descriptor;
  attempt.open_error = open_error;
  attempt.lock_error = lock_error;
  attempt.done = true;
  attempt.changed.notify_all();
}

}  // namespace

FileLock::FileLock(const std::string& path, double seconds, What what) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->what = what;
  std::thread([path, seconds, attempt] { try_to_lock(path, seconds, *attempt); }).detach();
  // Opening a file takes some time, too.
  const std::chrono::duration<double> limit(2 * seconds + 1);
  std::unique_lock lock(attempt->mutex);
  attempt->given_up = !attempt->changed.wait_for(lock, limit, [&] { return attempt->done; });
  ensure(!attempt->given_up, "{}: the file system has not answered for {:.0f} s", path,
         limit.count());
  if (attempt->open_error != 0) {
    const std::string message =
        fmt::format("{}: cannot be opened: {}", path, std::strerror(attempt->open_error));
    if (is_path_error(attempt->open_error)) throw InputError(message);
    throw Failure(message);
  }
  if (attempt->lock_error != 0) ::close(attempt->descriptor);
  // A network file system gives an exclusive lock only to a file that may be written.
  ensure(attempt->lock_error != EBADF, "{}: cannot be locked: this user may not write it", path);
  ensure(attempt->lock_error != EWOULDBLOCK, "{}: locked by another process for more than {:g} s",
         path, seconds);
  if (attempt->lock_error == 0) descriptor_ = attempt->descriptor;
}

bool FileLock::is_at(const std::string& path) const {
  struct stat locked{}, found{};
  return descriptor_ >= 0 && fstat(descriptor_, &locked) == 0 && stat(path.c_str(), &found) == 0 &&
         locked.st_dev == found.st_dev && locked.st_ino == found.st_ino;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::unique_ptr<FileLock> try_to_lock_folder(const std::string& folder, double seconds) {
  const double end = monotonic_seconds() + seconds;
  try {
    // Another process may have removed the folder and made it again before this one had the lock.
    do {
      auto lock = std::make_unique<FileLock>(folder, seconds, FileLock::What::folder);
      if (!lock->held()) return nullptr;
      if (lock->is_at(folder)) return lock;
    } while (monotonic_seconds() < end);
  } catch (const Error&) {
  }
  return nullptr;
}

}  // namespace trireme::io
