# SPDX-License-Identifier: Apache-2.0
"""Tests that no checkpoint is lost.

Full disks, missing folders, checkpoints in the background, checkpoints that no run can resume from.
"""

import json
import os
import shutil
import signal

import harness

STEPS = 40
LAST = "checkpoints/step_%09d.h5" % STEPS


def fill(path):
    """Fills the disk of this file."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                pass


class SafeHarbour(harness.Case):
    def events(self, folder="run", event=None):
        return [
            row
            for row in harness.read_rows(self.path(folder), "event")
            if event is None or row["event"] == event
        ]

    def test_written_beside_training_or_not_the_checkpoints_are_the_same(self):
        for ranks in (1, 2):
            for way in ("true", "false"):
                folder = "%s-%d" % (way, ranks)
                self.train(
                    "--set",
                    "run.stop=%d steps" % STEPS,
                    "--set",
                    "run.folder=" + folder,
                    "--set",
                    "checkpoint.async=" + way,
                    "--set",
                    "checkpoint.keep=100",
                    ranks=ranks,
                )
                rows = harness.read_rows(self.path(folder), "checkpoint")
                self.assertEqual([row["step"] for row in rows], list(range(5, STEPS + 1, 5)))
                for row in rows:
                    self.assertGreater(min(row["stall_s"], row["write_s"], row["bytes"]), 0)
                self.assertFalse(
                    [
                        name
                        for name in os.listdir(self.path(folder, "checkpoints"))
                        if name.endswith(".tmp")
                    ]
                )
            names = harness.checkpoints(self.path("true-%d" % ranks))
            self.assertEqual(len(names), STEPS // 5)
            for name in names:
                digests = {
                    harness.digest(self.path("%s-%d/checkpoints" % (way, ranks), name))
                    for way in ("true", "false")
                }
                self.assertEqual(len(digests), 1, name)
                self.assertEqual(
                    harness.run(
                        "verify", self.path("true-%d/checkpoints" % ranks, name)
                    ).returncode,
                    0,
                )

    def test_keep_every_keeps_some_for_ever(self):
        self.train(
            "--set",
            "run.stop=%d steps" % STEPS,
            "--set",
            "checkpoint.keep=1",
            "--set",
            "checkpoint.keep_every=12 steps",
        )
        self.assertEqual(
            harness.checkpoints(self.path("run")), ["step_%09d.h5" % step for step in (15, 25, 40)]
        )

    def test_a_full_disk_costs_no_checkpoint_and_no_step_until_there_are_too_many(self):
        """Tests a disk with space for two checkpoints.

        The run reports the third one, continues, and ends after three failed checkpoints. With more
        space it resumes with the same bits.
        """
        wide = (
            "--set",
            "run.stop=%d steps" % STEPS,
            "--set",
            "model.width=32",
            "--set",
            "checkpoint.best=none",
        )
        self.train(*wide, "--set", "run.folder=whole")
        size = os.path.getsize(self.path("whole", LAST))
        for way, ranks in (("true", 1), ("true", 2), ("false", 2)):
            with self.subTest(asynchronous=way, ranks=ranks), harness.SmallDisk(
                self.path("run"), 2 * size + (3 << 19)
            ):
                result = self.train(
                    *wide,
                    "--set",
                    "checkpoint.keep=100",
                    "--set",
                    "checkpoint.async=" + way,
                    ranks=ranks,
                    expect=1
                )
                self.assertIn("make room", result.text)
                names = harness.checkpoints(self.path("run"))
                self.assertEqual(len(names), 2)
                for name in names:
                    self.assertEqual(
                        harness.run("verify", self.path("run/checkpoints", name)).returncode, 0
                    )
                self.assertEqual(len(self.events(event="checkpoint_failed")), 3)
                with open(self.path("run/exit.json")) as file:
                    record = json.load(file)
                self.assertEqual((record["code"], record["checkpoint"]), (1, names[-1]))
                self.assertEqual(sorted(os.listdir(self.path("run/checkpoints"))), names)
                for name in names[:-1]:
                    os.remove(self.path("run/checkpoints", name))
                self.train(*wide, "--set", "checkpoint.keep=1", ranks=ranks)
                self.assertEqual(
                    harness.digest(self.path("run", LAST)), harness.digest(self.path("whole", LAST))
                )

    def test_a_disk_that_fails_leaves_nothing_that_looks_like_a_checkpoint(self):
        """Tests a failing disk, simulated by a preloaded library.

        Writes, flushes or reads of the checkpoint return EIO from a certain byte or call on.
        """
        library = self.preloaded("eio", EIO)
        self.train("--set", "run.stop=20 steps", "--set", "run.folder=whole")
        self.train(
            "--set",
            "run.stop=5 steps",
            "--set",
            "schedule.length=20 steps",
            "--set",
            "run.folder=begun",
            ranks=2,
        )
        whole, before = (
            harness.digest(self.path(folder, "checkpoints/step_%09d.h5" % step))
            for folder, step in (("whole", 20), ("begun", 5))
        )
        for call in ("write", "sync", "read"):
            for way in ("true", "false"):
                with self.subTest(call=call, asynchronous=way):
                    shutil.rmtree(self.path("run"), ignore_errors=True)
                    shutil.copytree(self.path("begun"), self.path("run"))
                    more = (
                        "--set",
                        "run.stop=20 steps",
                        "--set",
                        "schedule.length=20 steps",
                        "--set",
                        "checkpoint.async=" + way,
                    )
                    result = harness.run(
                        "train",
                        "deck.toml",
                        *more,
                        ranks=2,
                        cwd=self.folder,
                        env={"LD_PRELOAD": library, "TRIREME_TEST_EIO": call}
                    )
                    if not harness.ended_by_hdf5(result):
                        self.assertEqual(result.returncode, 1, result.text)
                        errors = self.errors_of(result.text)
                        self.assertEqual(len(errors), 1, result.text)
                        self.assertIn("Input/output error", errors[0])
                        self.assertEqual(len(self.events(event="checkpoint_failed")), 3)
                        self.assertEqual(
                            [
                                name
                                for name in os.listdir(self.path("run/checkpoints"))
                                if name != "best.h5"
                            ],
                            ["step_000000005.h5"],
                        )
                        with open(self.path("run/exit.json")) as file:
                            record = json.load(file)
                        self.assertEqual(
                            (record["code"], record["checkpoint"]), (1, "step_000000005.h5")
                        )
                    self.assertEqual(harness.checkpoints(self.path("run")), ["step_000000005.h5"])
                    self.assertEqual(
                        harness.digest(self.path("run/checkpoints/step_000000005.h5")), before
                    )
                    self.train(*more, ranks=2)
                    self.assertEqual(
                        harness.digest(self.path("run/checkpoints/step_000000020.h5")), whole
                    )

    def test_a_folder_that_is_gone_is_said_and_ends_the_run(self):
        self.train("--set", "run.stop=5 steps")
        shutil.rmtree(self.path("run/checkpoints"))
        with open(self.path("run/checkpoints"), "w"):
            pass  # a file with the name of the folder
        more = ("--set", "run.stop=%d steps" % STEPS)
        self.assertIn("run/checkpoints: is not a folder", self.train(*more, expect=2).text)
        os.remove(self.path("run/checkpoints"))
        os.symlink("nowhere", self.path("run/checkpoints"))
        self.assertIn("run/checkpoints: is not a folder", self.train(*more, expect=2).text)

    def test_a_folder_where_no_checkpoint_can_be_written_is_refused_at_the_start(self):
        os.mkdir(self.path("run"))
        os.symlink("/proc", self.path("run/checkpoints"))  # not even root can create files there
        said = self.train("--set", "run.stop=5 steps", expect=2).text
        self.assertIn("run/checkpoints: no checkpoint can be written there", said)
        self.assertFalse(os.path.exists(self.path("run/metrics.jsonl")))
        # The test writes to a file of its own, also where its name is a link.
        os.remove(self.path("run/checkpoints"))
        os.mkdir(self.path("run/checkpoints"))
        with open(self.path("precious"), "w") as file:
            file.write("text")
        os.symlink("../../precious", self.path("run/checkpoints/write_test.h5.tmp"))
        self.train("--set", "run.stop=5 steps")
        self.assertEqual(os.path.getsize(self.path("precious")), 4)
        # A run folder that is a link to a purged folder
        os.symlink("purged/run", self.path("linked"))
        said = self.train("--set", "run.folder=linked", expect=2).text
        self.assertIn("is a link to something that does not exist", said)
        self.assertTrue(os.path.islink(self.path("linked")))

    def test_what_a_killed_start_left_takes_no_room(self):
        wide = (
            "--set",
            "model.width=32",
            "--set",
            "checkpoint.best=none",
            "--set",
            "checkpoint.keep=1",
            "--set",
            "checkpoint.every=5 steps",
        )
        self.train(*wide, "--set", "run.stop=5 steps", "--set", "run.folder=whole")
        size = os.path.getsize(self.path("whole/checkpoints/step_000000005.h5"))
        # Space for two checkpoints, one of which is the newest.
        with harness.SmallDisk(self.path("run"), 2 * size + (3 << 19)):
            self.train(*wide, "--set", "run.stop=5 steps")
            shutil.copy(
                self.path("run/checkpoints/step_000000005.h5"),
                self.path("run/checkpoints/step_000000007.h5.tmp"),
            )
            self.train(*wide, "--set", "run.stop=10 steps")
            self.assertEqual(os.listdir(self.path("run/checkpoints")), ["step_000000010.h5"])

    def test_rows_of_metrics_wait_for_a_full_disk(self):
        """The disk is full from step 12 to step 30."""
        with harness.SmallDisk(self.path("run"), 16 << 20):
            more = (
                "--set",
                "run.stop=%d steps" % STEPS,
                "--set",
                "checkpoint.every=1000 steps",
                "--set",
                "checkpoint.best=none",
            )
            process, _, held = self.start_held(*more, step="12; stop rank 0 step 30")
            fill(self.path("run/full"))
            os.kill(held, signal.SIGCONT)
            harness.wait_for(
                lambda: process.poll() is not None or harness.state_of(held)[0] == "T", "step 30"
            )
            os.remove(self.path("run/full"))
            text = self.end_of(process, held)
            self.assertEqual(process.returncode, 0, text)
            self.assertEqual(text.count("rows are kept in memory"), 1, text)
            self.assertEqual(text.count("all rows of metrics are written"), 1, text)
            self.assertEqual(
                [row["step"] for row in harness.read_rows(self.path("run"), "train")],
                list(range(1, STEPS + 1)),
            )

    def test_a_file_system_without_second_names(self):
        """Tests a file system without hard links, which the lease and the best checkpoint usually
        use."""
        library = self.preloaded(
            "link",
            "#include <errno.h>\nint link(const char* from, const char* to) { (void)from; "
            "(void)to; errno = EPERM; return -1; }\n",
        )
        process, _, held = self.start_held(
            "--set", "run.stop=20 steps", env={"LD_PRELOAD": library}
        )
        result = harness.run("train", "deck.toml", cwd=self.folder, env={"LD_PRELOAD": library})
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("in use by process %d" % held, result.text)
        text = self.end_of(process, held)
        self.assertEqual(process.returncode, 0, text)
        best = self.path("run/checkpoints/best.h5")
        self.assertEqual(harness.run("verify", best).returncode, 0)
        self.assertEqual(os.stat(best).st_nlink, 1)
        self.assertFalse(os.path.exists(self.path("run/run.lock")))

    def test_a_checkpoint_from_which_two_starts_failed_is_passed_over(self):
        length = ("--set", "schedule.length=%d steps" % STEPS)
        self.train(*length, "--set", "run.stop=%d steps" % STEPS, "--set", "run.folder=whole")
        self.train(*length, "--set", "run.stop=20 steps")
        # The state after two starts that were killed before their first step.
        with open(self.path("run/restart.json"), "w") as file:
            json.dump({"checkpoint": "step_000000020.h5", "starts": 2}, file)
        result = self.train(*length, "--set", "run.stop=%d steps" % STEPS)
        self.assertIn("is skipped and kept", result.text)
        self.assertIn("resumed from run/checkpoints/step_000000015.h5", result.text)
        self.assertTrue(os.path.exists(self.path("run/checkpoints/step_000000020.h5.failed")))
        self.assertFalse(os.path.exists(self.path("run/restart.json")))
        self.assertEqual(
            harness.digest(self.path("run", LAST)), harness.digest(self.path("whole", LAST))
        )

    def test_a_change_that_may_not_be_made_counts_as_no_failed_start(self):
        self.train("--set", "run.stop=5 steps")
        for _ in range(3):
            self.train("--set", "run.seed=8", expect=2)
        self.assertFalse(os.path.exists(self.path("run/restart.json")))

    def test_a_place_in_the_data_that_cannot_be_is_refused(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("h5py is not installed")
        self.train("--set", "run.stop=5 steps")
        for index, (name, value) in enumerate(
            (
                ("step", 2**60),
                ("step", 10**6),
                ("samples", 10**9),
                ("epoch_samples", 10**7),
                ("epoch", 2**62),
            )
        ):
            path = self.path("foreign%d.h5" % index)
            with h5py.File(self.path("run/checkpoints/step_000000005.h5")) as ours, h5py.File(
                path, "w"
            ) as file:
                for key, own in ours.attrs.items():
                    file.attrs[key] = own
                file.attrs[name] = value
                for group in ("model", "buffers"):
                    for tensor in ours[group]:
                        file.create_dataset(
                            "%s/%s" % (group, tensor), data=ours[group][tensor][...]
                        )
            with self.subTest(attribute=name, value=value):
                result = self.train(
                    "--set", "run.folder=other%d" % index, "--restart", path, expect=2
                )
                self.assertIn("foreign%d.h5" % index, result.text)

    def test_a_weight_that_is_no_number_is_refused_by_name(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("h5py is not installed")
        self.train("--set", "run.stop=5 steps")
        path = self.path("foreign.h5")
        with h5py.File(self.path("run/checkpoints/step_000000005.h5")) as ours, h5py.File(
            path, "w"
        ) as file:
            for key, own in ours.attrs.items():
                file.attrs[key] = own
            for group in ("model", "buffers"):
                for tensor in ours[group]:
                    values = ours[group][tensor][...]
                    if tensor == "fc.weight":
                        values[1, 1] = float("nan")
                    file.create_dataset("%s/%s" % (group, tensor), data=values)
        for ranks in (1, 2):
            result = self.train(
                "--set", "run.folder=other", "--restart", path, ranks=ranks, expect=2
            )
            self.assertIn("model/fc.weight", result.text)
        self.assertIn(
            "model/fc.weight",
            harness.run("evaluate", "deck.toml", "--checkpoint", path, cwd=self.folder).text,
        )


EIO = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Skips the beginning of the file: HDF5's own structures and the seal. `place` is the end of a
   read, or the beginning of a write. */
static int fails(const char* call, int file, off_t place) {
  const char* asked = getenv("TRIREME_TEST_EIO");
  if (asked == NULL || strcmp(asked, call) != 0 || place < 100000) return 0;
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  ssize_t length = readlink(name, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strstr(path, ".h5.tmp") != NULL;
}

#define REAL(name)                \
  static __typeof__(&name) real; \
  if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define POSITIONED(name, call, data, count, end)                                      \
  ssize_t name(int file, data, count amount, off_t offset) {                          \
    REAL(name);                                                                       \
    return fails(call, file, end) ? (errno = EIO, -1) : real(file, values, amount, offset); \
  }

POSITIONED(pwrite, "write", const void* values, size_t, offset)
POSITIONED(pwrite64, "write", const void* values, size_t, offset)
POSITIONED(pwritev, "write", const struct iovec* values, int, offset)
POSITIONED(pwritev64, "write", const struct iovec* values, int, offset)
POSITIONED(pread, "read", void* values, size_t, offset + (off_t)amount)
POSITIONED(pread64, "read", void* values, size_t, offset + (off_t)amount)

int fsync(int file) {
  REAL(fsync);
  return fails("sync", file, 100000) ? (errno = EIO, -1) : real(file);
}
"""


if __name__ == "__main__":
    harness.main(at_once=3)
