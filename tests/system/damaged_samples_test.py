# SPDX-License-Identifier: Apache-2.0
"""Tests that no step is lost when a run ends because samples cannot be read."""

import glob
import json
import os
import random
import unittest

import harness

try:
    import h5py
except ImportError:
    harness.skip("h5py is not installed")

DECK = """
[run]
name = "damaged"
folder = "run"
stop = "20 steps"
deterministic = true
[model]
kind = "resnet"
depth = 8
width = 8
[data]
train = "train"
validation = "validation"
[data.augment]
random_resized_crop = { size = 8 }
evaluate = { resize = 8, crop = 8 }
[batch]
global = 16
micro = 4
[optimizer]
kind = "sgd"
ema = 0.9
[schedule]
kind = "constant"
rate = 0.05
[evaluate]
every = "10 steps"
[checkpoint]
every = "7 steps"
best = "loss"
[monitor]
every = "1 step"
tensorboard = false
"""
EMULATED = ("--allow-faults", "--set", "debug.device=emulated")
LAYOUTS = {
    "one": (1, ()),
    "two": (2, ()),
    "stages": (2, ("--set", "parallel.pipeline=2")),
    "two in flight": (2, EMULATED),
    "gathered": (2, ("--set", "parallel.shard=parameters")),
    "sharded": (4, ("--set", "parallel.shard=parameters", "--set", "parallel.pipeline=2")),
}


class DamagedSamples(harness.Case):
    # Digests of undisturbed runs by layout. All tests have the same data.
    undisturbed = {}

    def setUp(self):
        super().setUp()
        rng = random.Random(4)
        for name, count in (("train", 200), ("validation", 40)):
            pixels = bytes(rng.randrange(256) for _ in range(count * 64))
            harness.write_idx(self.path("images"), (count, 8, 8), pixels)
            harness.write_idx(self.path("labels"), (count,), bytes(i % 4 for i in range(count)))
            words = ("images", "labels", "--encode", "png", "--out", name)
            result = harness.run("shard", "idx", *words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
        self.write_deck(DECK)

    def flip(self, folder, sample):
        """Changes one bit in the pixels of a sample, or changes it back."""
        path = self.path(folder, "shard_00000.h5")
        with h5py.File(path) as file:
            begin, end = file["offsets"][sample : sample + 2]
            place = file["bytes"].id.get_offset() + int(begin + end) // 2
        stamp = os.stat(path)
        with open(path, "r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 16]))
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    def digest(self, run):
        path = self.path(run, "checkpoints/step_000000020.h5")
        result = harness.run("inspect", path, "--digest", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.text.split()[-1]

    def steps(self, run):
        paths = glob.glob(self.path(run, "checkpoints/step_*.h5"))
        return sorted(int(os.path.basename(path)[5:-3]) for path in paths)

    def ends_and_resumes(self, folder, sample, saying, step=None):
        """Runs each layout with a damaged sample, mends it, and compares with whole runs."""
        for name, (ranks, words) in LAYOUTS.items():
            words += ("--set", "run.folder=" + name)
            self.flip(folder, sample)
            result = self.train(*words, ranks=ranks, expect=2)
            self.assertIn(saying, result.text, name)
            with open(self.path(name, "log.txt")) as file:
                self.assertIn(saying, file.read(), name)
            with open(self.path(name, "exit.json")) as file:
                record = json.load(file)
            self.assertEqual(record["code"], 2)
            saved = self.steps(name)[-1]
            self.assertEqual(record["step"], saved, name)
            self.assertEqual(record["checkpoint"], "step_%09d.h5" % saved)
            step = step or saved
            self.assertEqual(saved, step, name)
            self.flip(folder, sample)
            self.train(*words, ranks=ranks)
            details = [row["detail"] for row in harness.read_rows(self.path(name), "event")]
            self.assertIn("resumed from step %d" % step, details)
            if name not in self.undisturbed:
                whole = "whole-" + name
                self.train(*words, "--set", "run.folder=" + whole, ranks=ranks)
                self.undisturbed[name] = self.digest(whole)
            self.assertEqual(self.digest(name), self.undisturbed[name], name)
        return step

    def test_a_damaged_validation_image_loses_no_step(self):
        saying = "validation/shard_00000.h5: sample 21 is a damaged PNG file"
        self.ends_and_resumes("validation", 21, saying, step=10)

    def test_an_evaluation_that_failed_is_made_by_the_next_start(self):
        """Otherwise a plateau would count one evaluation less, and the rates would differ."""
        words = ["--set", "evaluate.every=5 steps"]
        for key in ("kind=plateau", "patience=0", "threshold=0.99", "factor=0.5"):
            words += ["--set", "schedule." + key]
        self.train(*words, "--set", "run.folder=whole")
        evaluated = [r["step"] for r in harness.read_rows(self.path("whole"), "evaluate")]
        self.assertEqual(evaluated, [5, 10, 15, 20])
        for damaged_at, stop in ((10, "12 steps"), (20, "20 steps")):
            folder = "at-%d" % damaged_at
            parts = [*words, "--set", "run.folder=" + folder]
            self.train(*parts, "--set", "run.stop=%d steps" % (damaged_at - 3))
            self.flip("validation", 21)
            for _ in range(2):  # still damaged at the second start
                self.train(*parts, "--set", "run.stop=" + stop, expect=2)
                self.assertEqual(self.steps(folder)[-1], damaged_at)
            self.flip("validation", 21)
            self.train(*parts, ranks=2)
            rows = harness.read_rows(self.path(folder), "evaluate")
            steps = {r["step"] for r in rows} - {damaged_at - 3}
            self.assertEqual(sorted(steps), evaluated)
            self.assertEqual(self.digest(folder), self.digest("whole"), folder)
            rates = [r["rate"] for r in harness.read_rows(self.path(folder), "train")]
            self.assertEqual(rates[-1], 0.05 / 4)  # reduced after the steps 10 and 15

    def test_a_damaged_training_image_loses_no_step(self):
        saying = "train/shard_00000.h5: sample 140 is a damaged PNG file"
        step = self.ends_and_resumes("train", 140, saying)
        self.assertNotIn(step, (0, 7, 14), "choose another sample")

    def test_no_other_kind_of_sync_loses_a_checkpoint_that_is_being_written(self):
        self.flip("train", 140)
        self.train(expect=2)
        last = self.steps("run")[-1]
        self.assertGreater(last, 1)
        # A checkpoint of the last step before the damage is begun, and not yet published when the
        # next step cannot read its samples. Between averages no other step may be saved.
        every = "%d steps" % last
        for sync in ("delayed", "every " + every):
            words = ["--set", "run.folder=" + sync]
            for key in ("checkpoint.every", "evaluate.every"):
                words += ["--set", "%s=%s" % (key, every)]
            words += ["--set", "parallel.sync=" + sync]
            for ranks in (1, 2) if sync == "delayed" else (2,):
                result = self.train(*words, "--restart", "none", ranks=ranks, expect=2)
                name = "%s, %d ranks" % (sync, ranks)
                self.assertEqual(self.steps(sync), [last], name)
                with open(self.path(sync, "exit.json")) as file:
                    record = json.load(file)
                self.assertEqual(record["code"], 2, name)
                self.assertEqual(record["step"], last, name)
                self.assertEqual(record["checkpoint"], "step_%09d.h5" % last, name)
                self.assertEqual(glob.glob(self.path(sync, "checkpoints/*.tmp")), [], name)
                # Every rank leaves with the error of the one that cannot read, printed once.
                saying = "sample 140 is a damaged PNG"
                self.assertEqual(result.text.count(saying), 1, result.text)
                with open(self.path(sync, "log.txt")) as file:
                    self.assertIn(saying, file.read(), name)
            result = harness.run("verify", self.path(sync, "checkpoints"), cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)

    def test_replicas_that_differ_between_averages_are_not_saved(self):
        self.flip("train", 140)
        words = ("--set", "parallel.sync=every 7 steps", "--set", "evaluate.every=7 steps")
        self.train(*words, ranks=2, expect=2)
        self.assertEqual([step for step in self.steps("run") if step % 7], [])
        with open(self.path("run", "log.txt")) as file:
            self.assertIn("sample 140 is a damaged PNG", file.read())


if __name__ == "__main__":
    unittest.main()
