# SPDX-License-Identifier: Apache-2.0
"""Tests that plain h5py reads the files of the program, and that the program reads files of
h5py."""

import json
import os
import unittest

import harness

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")


def digest(values):
    """Returns the digest of a dataset (docs/reference/files.md).

    It is the sum over the elements of splitmix64's finalizer of (bits + (i + 1) * golden ratio).
    """
    x = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        z = x + np.arange(1, x.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(np.sum(z ^ (z >> np.uint64(31)), dtype=np.uint64))


class H5py(harness.Case):
    def test_opens_shards(self):
        names = sorted(os.listdir(self.shared + "/train"))
        self.assertEqual(len(names), 2)
        total = 0
        for name in names:
            with h5py.File(os.path.join(self.shared, "train", name)) as file:
                self.assertEqual(file.attrs["format"], "trireme-shard")
                self.assertEqual(file.attrs["version"], 1)
                self.assertEqual(file.attrs["kind"], "images")
                self.assertEqual(file["images"].dtype, np.uint8)
                self.assertEqual(file["images"].shape[1:], (12, 12, 1))
                self.assertEqual(file["labels"].dtype, np.int32)
                self.assertEqual(file["labels"].shape[0], file["images"].shape[0])
                self.assertIsNone(file["images"].chunks)
                total += file["images"].shape[0]
        self.assertEqual(total, self.samples)

    def test_the_writer_of_a_checkpoint_is_quoted_or_ignored(self):
        self.train("--set", "run.stop=2 steps", "--set", "schedule.warmup=1 step")
        path = self.path("run/checkpoints/step_000000002.h5")
        with h5py.File(path) as file:
            deck = file.attrs["deck"]
            begin = file.userblock_size
        with open(path, "rb") as file:
            content = file.read()[begin:]  # without the seal
        text = "a\nb\x1b[2J\u202egnp \x7f\x9b"
        for writer, shown in (
            (text, "written by a\\x0Ab\\x1B[2J\\xE2\\x80\\xAEgnp \\x7F\\xC2\\x9B\n"),
            (7, None),
            (np.arange(3), None),
            (np.zeros(1, [("a", "i4"), ("b", "f8")])[0], None),
            (h5py.Empty("S10"), None),
        ):
            with open(self.path("new.h5"), "wb") as file:
                file.write(content)
            with h5py.File(self.path("new.h5"), "r+") as file:
                file.attrs["written_by"] = writer
            result = harness.run("inspect", "new.h5", cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            self.assertNotRegex(result.stdout, "[\0-\x09\x0b-\x1f\x7f-\x9f\u202e]")
            if shown:
                self.assertIn(shown, result.stdout)
            else:
                self.assertNotIn("written by", result.stdout)
            result = harness.run("inspect", "new.h5", "--json", cwd=self.folder)
            found = json.loads(result.stdout)
            self.assertEqual(found["written_by"], text if shown else None)
            self.assertEqual(found["deck"], deck)
            self.assertTrue(result.stdout.isascii() and "\x7f" not in result.stdout)
            result = harness.run("evaluate", "deck.toml", "--checkpoint", "new.h5", cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)

    def test_opens_checkpoints(self):
        self.train("--set", "run.stop=5 steps", ranks=2)
        with h5py.File(self.path("run/checkpoints/step_000000005.h5")) as file:
            self.assertEqual(file.attrs["format"], "trireme-checkpoint")
            self.assertEqual(
                (
                    file.attrs["version"],
                    file.attrs["complete"],
                    file.attrs["step"],
                    file.attrs["samples"],
                ),
                (1, 1, 5, 320),
            )
            self.assertIn(
                "[model]",
                (
                    file.attrs["deck"]
                    if isinstance(file.attrs["deck"], str)
                    else file.attrs["deck"].decode()
                ),
            )
            self.assertEqual(file["model/conv1.weight"].shape, (8, 1, 3, 3))
            self.assertEqual(file["model/layer2.0.conv1.weight"].shape, (16, 8, 3, 3))
            self.assertEqual(file["model/fc.weight"].shape, (5, 32))
            self.assertEqual(file["optimizer/momentum/fc.weight"].shape, (5, 32))
            self.assertEqual(file["optimizer"].attrs["updates"], 5)
            self.assertIn("buffers/layer1.0.bn1.running_var", file)
            count = 0

            def visit(name, item):
                nonlocal count
                if isinstance(item, h5py.Dataset) and item.dtype == np.float32:
                    self.assertEqual(int(item.attrs["digest"]) % 2**64, digest(item[...]), name)
                    count += 1

            file.visititems(visit)
            self.assertGreater(count, 60)

    def test_the_average_of_the_weights_follows_its_rule(self):
        """Computes the average from the weights of each checkpoint. A dropped step leaves it
        unchanged."""
        decay, steps = 0.8, 6
        self.train(
            "--set",
            "run.stop=%d steps" % steps,
            "--set",
            "checkpoint.every=1 step",
            "--set",
            "checkpoint.keep=9",
            "--set",
            "optimizer.ema=%g" % decay,
            "--allow-faults",
            "--set",
            "debug.fault=nan rank 1 step 4",
            ranks=2,
        )
        # a dropped step writes no checkpoint
        files = [
            h5py.File(self.path("run/checkpoints/step_%09d.h5" % step))
            for step in range(1, steps + 1)
            if step != 4
        ]
        names = [(group, name) for group in ("model", "buffers") for name in files[0][group]]
        self.assertEqual({name for _, name in names}, set(files[0]["ema"]))
        for before, after in zip(files, files[1:]):
            self.assertEqual(
                after["optimizer"].attrs["updates"], before["optimizer"].attrs["updates"] + 1
            )
            for group, name in names:
                average, weight, found = (
                    np.asarray(tensor[...], np.float64)
                    for tensor in (before["ema"][name], after[group][name], after["ema"][name])
                )
                expected = average + (1 - decay) * (weight - average)
                # Float32 rounds the factor, the difference, their product and the sum.
                bound = 2.0**-24 * (3 * (1 - decay) * abs(weight - average) + abs(expected))
                self.assertTrue((abs(found - expected) <= bound).all(), name)
                self.assertFalse((found == average).all(), name)

    def test_its_shards_train(self):
        rng = np.random.default_rng(3)
        folder = self.path("foreign")
        os.makedirs(folder)
        for index, options in enumerate(({}, {"chunks": (7, 12, 12, 1), "compression": "gzip"})):
            with h5py.File(os.path.join(folder, "part%d.h5" % index), "w") as file:
                file.attrs["format"] = "trireme-shard"
                file.attrs["version"] = np.int64(1)
                file.attrs["kind"] = "images"
                file["readme"] = "a single string, which no command needs"
                file.create_dataset(
                    "images", data=rng.integers(0, 256, (100, 12, 12, 1), dtype=np.uint8), **options
                )
                file.create_dataset(
                    "labels",
                    data=rng.integers(0, 5, 100).astype(np.int32 if index == 0 else np.int64),
                )
        result = self.train("--set", "data.train=foreign", "--set", "run.stop=6 steps", ranks=2)
        self.assertIn("step_000000005.h5", result.text)
        self.assertEqual(harness.run("verify", folder).returncode, 0)
        self.assertIn("no checksums", harness.run("verify", folder).text)

    def test_its_checkpoint_goes_on(self):
        self.train("--set", "run.stop=5 steps")
        with h5py.File(self.path("run/checkpoints/step_000000005.h5")) as ours, h5py.File(
            self.path("foreign.h5"), "w"
        ) as file:
            for key, value in ours.attrs.items():
                file.attrs[key] = value
            for group in ("model", "buffers"):
                for name in ours[group]:
                    file.create_dataset("%s/%s" % (group, name), data=ours[group][name][...])
        text = harness.run("verify", self.path("foreign.h5"))
        self.assertEqual((text.returncode, "no checksums" in text.text), (0, True), text.text)
        result = self.train(
            "--set", "run.folder=other", "--set", "run.stop=10 steps", "--restart", "foreign.h5"
        )
        self.assertIn("no optimizer state", result.text)
        self.assertEqual(
            min(harness.last_by_step(harness.read_rows(self.path("other"), "train"))), 6
        )
        self.assertNotIn("holds no deck", result.text)
        with h5py.File(self.path("foreign.h5"), "a") as file:
            del file.attrs["deck"]
        words = ("--set", "run.folder=third", "--set", "run.stop=6 steps")
        result = self.train(*words, "--restart", "foreign.h5", "--weights-only")
        self.assertIn("foreign.h5: holds no deck, so only names and shapes", result.text)
        with h5py.File(self.path("foreign.h5"), "a") as file:
            file["ema/fc.bias"] = file["model/fc.bias"][...]
        result = self.train(
            "--set",
            "run.folder=another",
            "--set",
            "run.stop=10 steps",
            "--set",
            "optimizer.ema=0.9",
            "--restart",
            "foreign.h5",
            expect=2,
        )
        self.assertRegex(result.text, r"foreign\.h5: has no tensor ema/")


if __name__ == "__main__":
    unittest.main()
