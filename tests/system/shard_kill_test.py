# SPDX-License-Identifier: Apache-2.0
"""Tests `shard` commands that are killed, started twice, or follow another command.

A dataset of many small shards takes seconds to make, since each shard is flushed to the disk. The
tests stop or kill the program after its first shards.
"""

import glob
import os
import signal
import unittest

import harness

SHARDS = 400
SAMPLES = 4 * SHARDS


class KilledShard(harness.Case):
    def setUp(self):
        super().setUp()
        self.write_source(seed=0)
        self.shard = ("shard", "idx", "images", "labels", "--shards", SHARDS)

    def write_source(self, seed):
        pixels = bytes((i * 31 + (i >> 7) + seed) % 256 for i in range(16 * SAMPLES))
        harness.write_idx(self.path("images"), (SAMPLES, 4, 4), pixels)
        harness.write_idx(self.path("labels"), (SAMPLES,), bytes(i % 3 for i in range(SAMPLES)))

    def sealed(self, folder="made"):
        """Returns the complete shards of a staging folder."""
        return sorted(glob.glob(self.path(folder, ".making-*", "shard_*.h5")))

    def start_shard(self, *arguments, ranks=1):
        """Starts the command and waits for its first sealed shards."""
        process = harness.start(
            *self.shard, *arguments, "--out", "made", ranks=ranks, cwd=self.folder
        )
        harness.wait_for(
            lambda: len(self.sealed()) >= 5 or process.poll() is not None, "the first shards"
        )
        if process.poll() is not None:
            self.fail("it ended before it could be interrupted: " + process.communicate()[0])
        return process

    def make(self, *arguments, expect=0, ranks=1):
        result = harness.run(*self.shard, *arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def test_the_sealed_shards_of_a_killed_command_are_kept_at_any_number_of_ranks(self):
        self.make("--out", "whole")
        for ranks, again in ((2, 1), (1, 3)):
            harness.kill(self.start_shard(ranks=ranks))
            kept = {os.path.basename(path): os.stat(path).st_ino for path in self.sealed()}
            self.assertEqual([n for n in os.listdir(self.path("made")) if n[0] != "."], [])
            # One of them is damaged: it is made again.
            damaged = self.sealed()[2]
            with open(damaged, "r+b") as file:
                file.seek(os.path.getsize(damaged) // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
            said = self.make("--out", "made", ranks=again)
            self.assertIn("%d of %d shards kept" % (len(kept) - 1, SHARDS), said)
            self.assertEqual(self.contents("made"), self.contents("whole"))
            same = {name for name in kept if os.stat(self.path("made", name)).st_ino == kept[name]}
            self.assertEqual(same, set(kept) - {os.path.basename(damaged)})
            for name in os.listdir(self.path("made")):
                os.remove(self.path("made", name))

    def test_a_second_live_command_is_refused(self):
        process = self.start_shard()
        os.kill(process.pid, signal.SIGSTOP)
        staging = os.listdir(self.path("made"))
        for others in ((), ("--range", "0:1000")):
            said = self.make(*others, "--out", "made", expect=2)
            self.assertIn("in use by process %d" % process.pid, said)
            self.assertIn("name another folder", said)
            self.assertEqual(os.listdir(self.path("made")), staging)
        os.kill(process.pid, signal.SIGCONT)
        said, _ = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(process.returncode, 0, said)
        self.make("--out", "whole")
        self.assertEqual(self.contents("made"), self.contents("whole"))

    def test_another_command_removes_what_a_killed_one_left(self):
        harness.kill(self.start_shard())
        left = os.listdir(self.path("made"))
        said = self.make("--range", "0:1200", "--out", "made")
        self.assertIn(left[0] + ": removed", said)
        self.assertNotIn("kept", said)
        self.make("--range", "0:1200", "--out", "whole")
        self.assertEqual(self.contents("made"), self.contents("whole"))

    def test_shards_of_a_source_that_changed_are_not_kept(self):
        harness.kill(self.start_shard())
        self.write_source(seed=1)
        said = self.make("--out", "made")
        self.assertIn(": removed", said)
        self.assertNotIn("kept", said)
        self.make("--out", "whole")
        self.assertEqual(self.contents("made"), self.contents("whole"))


if __name__ == "__main__":
    harness.main(at_once=2)
