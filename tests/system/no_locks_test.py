# SPDX-License-Identifier: Apache-2.0
"""Tests file systems without file locks, as NFS without a lock service: flock and fcntl fail.

HDF5 locks files that it opens. The program works without, unless HDF5_USE_FILE_LOCKING asks for
locks: then it exits with 2 before the first step.
"""

import errno
import os

import harness

NO_LOCKS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int refuse(void) { errno = atoi(getenv("LOCK_ERRNO")); return -1; }
int flock(int file, int operation) { (void)file; (void)operation; return refuse(); }
static int call(int file, int command, void* value) {
  const int locks = command == F_GETLK || command == F_SETLK || command == F_SETLKW;
  return locks ? refuse() : (int)syscall(SYS_fcntl, file, command, value);
}
int fcntl(int file, int command, ...) {
  va_list list;
  va_start(list, command);
  void* value = va_arg(list, void*);
  va_end(list);
  return call(file, command, value);
}
int fcntl64(int file, int command, ...) {
  va_list list;
  va_start(list, command);
  void* value = va_arg(list, void*);
  va_end(list);
  return call(file, command, value);
}
"""
ERRORS = (errno.ENOLCK, errno.EOPNOTSUPP, 524)  # 524: ENOTSUPP of the kernel


class NoLocks(harness.Case):
    def setUp(self):
        super().setUp()
        self.library = self.preloaded("no_locks", NO_LOCKS)

    def run_without(self, *arguments, error=ERRORS[0], ranks=1, **env):
        env.update(LD_PRELOAD=self.library, LOCK_ERRNO=str(error))
        return harness.run(*arguments, ranks=ranks, cwd=self.folder, env=env)

    def expect_done(self, *arguments, **options):
        result = self.run_without(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.text)
        return result

    def test_a_run_writes_and_reads_its_checkpoints(self):
        for error in ERRORS:
            for way in ("true", "false"):
                with self.subTest(error=error, asynchronous=way):
                    folder = "run%d%s" % (error, way)
                    words = ("train", "deck.toml", "--set", "run.folder=" + folder)
                    words += ("--set", "checkpoint.async=" + way)
                    self.expect_done(*words, "--set", "run.stop=10 steps", error=error, ranks=2)
                    result = self.expect_done(*words, error=error)
                    self.assertIn(
                        "resumed from %s/checkpoints/step_000000010.h5" % folder, result.text
                    )
                    self.assertIn("step_000000020.h5", harness.checkpoints(self.path(folder)))

    def test_other_commands_that_open_hdf5(self):
        self.expect_done("train", "deck.toml")
        newest = "run/checkpoints/step_000000020.h5"
        for error in ERRORS:
            with self.subTest(error=error):
                with open(self.path("text.txt"), "w") as file:
                    file.write("some words " * 1000)
                shard = ("shard", "text", "text.txt", "--out", "text", "--overwrite")
                self.expect_done(*shard, error=error)
                self.expect_done("verify", "text", error=error)
                self.expect_done("verify", newest, error=error)
                self.expect_done("inspect", "run", error=error)
                self.expect_done("evaluate", "deck.toml", "--checkpoint", newest, error=error)
                weights = "a%d.safetensors" % error
                self.expect_done("export", newest, "--out", weights, error=error)
                made = ("--out", "a%d.h5" % error)
                self.expect_done("import", weights, "deck.toml", *made, error=error)

    def test_a_setting_of_the_user_is_obeyed(self):
        for setting in ("TRUE", "BEST_EFFORT"):
            result = self.run_without("train", "deck.toml", HDF5_USE_FILE_LOCKING=setting)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertEqual(len(self.errors_of(result.text)), 1)
            self.assertIn("HDF5_USE_FILE_LOCKING=%s asks for them" % setting, result.text)
            self.assertNotIn("step 1/", result.text)
        self.expect_done("train", "deck.toml", HDF5_USE_FILE_LOCKING="FALSE")


if __name__ == "__main__":
    harness.main(at_once=2)
