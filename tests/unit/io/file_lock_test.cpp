// SPDX-License-Identifier: Apache-2.0
//
// The lock between processes: exclusive, released, and without an endless wait. flock() is replaced
// by one that can fail or not answer, as that of a network file system.

#include "trireme/io/file_lock.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// errno of flock(); 0: the system's own call.
std::atomic<int> flock_error = 0;
/// flock() does not return while this is true.
std::atomic<bool> flock_hangs = false;

}  // namespace

/// Replaces the C library's function in this program.
extern "C" int flock(int descriptor, int operation) noexcept {
  while (flock_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (flock_error == 0) return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  errno = flock_error;
  return -1;
}

namespace trireme::io {
namespace {

TEST(FileLock, ExcludesOthersUntilItIsReleased) {
  const test::ScratchFolder folder;
  std::optional<FileLock> first(std::in_place, folder / "lock", 0);
  EXPECT_TRUE(first->held());
  EXPECT_THAT(
      [&] { FileLock(folder / "lock", 0.05); },
      ThrowsMessage<Failure>(HasSubstr("lock: locked by another process for more than 0.05 s")));
  EXPECT_TRUE(FileLock(folder / "other", 0).held());
  std::thread waiting([&] { EXPECT_TRUE(FileLock(folder / "lock", 30).held()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first.reset();
  waiting.join();
  EXPECT_TRUE(FileLock(folder / "lock", 0).held());
}

TEST(FileLock, AWrongPathIsTheUsers) {
  const test::ScratchFolder folder;
  EXPECT_THAT([&] { FileLock(folder / "none/lock", 0); },
              ThrowsMessage<InputError>(HasSubstr("none/lock: cannot be opened")));
}

TEST(FileLock, AFileSystemWithoutLocksHoldsNone) {
  const test::ScratchFolder folder;
  for (const int error : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    flock_error = error;
    EXPECT_FALSE(FileLock(folder / "lock", 0).held()) << error;
  }
  flock_error = 0;
  EXPECT_TRUE(FileLock(folder / "lock", 0).held());
}

TEST(FileLock, DoesNotWaitForAFileSystemThatDoesNotAnswer) {
  const test::ScratchFolder folder;
  flock_hangs = true;
  const double begin = monotonic_seconds();
  EXPECT_THAT([&] { FileLock(folder / "lock", 0); },
              ThrowsMessage<Failure>(HasSubstr("lock: the file system has not answered for 1 s")));
  EXPECT_GE(monotonic_seconds() - begin, 1);
  // The thread that was given up gets the lock now, and releases it.
  flock_hangs = false;
  EXPECT_TRUE(FileLock(folder / "lock", 30).held());
}

}  // namespace
}  // namespace trireme::io
