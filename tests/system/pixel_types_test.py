# SPDX-License-Identifier: Apache-2.0
"""Tests training on images of every pixel type, of many channels, and of any storage.

The shards are written by h5py. A type changes nothing but the scale of the stored numbers: where
the scaled values are equal, the weights after training have equal bits.
"""

import os
import unittest

import harness

try:
    import h5py
    import numpy as np
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, CLASSES = 48, 4
DECK = """
[run]
name = "pixels"
folder = "run"
stop = "10 steps"
deterministic = true
[model]
kind = "resnet"
depth = 8
width = 8
norm = "group"
stem = "small"
[data]
train = "train"
validation = "train"
[data.augment]
random_crop = 2
flip = true
%s
[batch]
global = 8
micro = 4
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.05
[monitor]
tensorboard = false
"""


def pixels(channels):
    """Returns uint8 images whose class can be learned."""
    rng = np.random.default_rng(7)
    images = rng.integers(0, 200, (SAMPLES, 8, 8, channels), dtype=np.uint8)
    images[np.arange(SAMPLES) % CLASSES == 1, :4] += 55
    return images


class PixelTypes(harness.Case):
    def write(self, folder, images, **options):
        """Writes a dataset of one shard."""
        os.makedirs(self.path(folder), exist_ok=True)
        with h5py.File(self.path(folder, "part.h5"), "w") as file:
            file.attrs["format"] = "trireme-shard"
            file.create_dataset("images", data=images, **options)
            file.create_dataset("labels", data=np.arange(SAMPLES, dtype=np.int32) % CLASSES)

    def weights(self, name, *words, ranks=1, normalize=""):
        """Trains on the dataset `name`; returns the digest of the weights."""
        self.write_deck(DECK % normalize)
        sets = ("--set", "data.train=" + name, "--set", "data.validation=" + name)
        self.runs = getattr(self, "runs", 0) + 1
        run = "run_%d" % self.runs
        self.train(*sets, "--set", "run.folder=" + run, *words, ranks=ranks)
        path = self.path(run, "checkpoints/step_000000010.h5")
        result = harness.run("inspect", path, "--digest", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.text.split()[-1]

    def test_equal_values_have_equal_bits_in_every_type_and_storage(self):
        for channels in (1, 3, 6):
            stored = pixels(channels)
            value = stored.astype(np.float32) / np.float32(255)
            gzip = {"chunks": (8, 8, 8, channels), "compression": "gzip", "shuffle": True}
            self.write("bytes", stored)
            expected = self.weights("bytes")
            for name, images, options in (
                ("words", stored.astype(np.uint16) * 257, {}),
                ("words_gzip", (stored.astype(np.uint16) * 257).astype(">u2"), gzip),
                ("floats", value, {}),
                ("floats_big_endian", value.astype(">f4"), {}),
                ("floats_gzip", value, gzip),
            ):
                self.write(name, images, **options)
                self.assertEqual(self.weights(name), expected, (name, channels))
            # float16 rounds, so it is compared with float32 of the rounded values.
            half = value.astype(np.float16)
            self.write("half", half)
            self.write("half_gzip", half.astype(">f2"), **gzip)
            self.write("rounded", half.astype(np.float32))
            halves = {self.weights(name) for name in ("half", "half_gzip", "rounded")}
            emulated = ("--allow-faults", "--set", "debug.device=emulated")
            halves.add(self.weights("half", *emulated))
            self.assertEqual(len(halves), 1, channels)
            self.assertNotEqual(halves, {expected})

    def test_one_number_normalizes_all_channels_and_ranks_agree(self):
        self.write("many", pixels(40))
        one = "normalize = { mean = [0.5], std = [0.25] }"
        each = "normalize = { mean = [%s], std = [%s] }"
        each %= (", ".join(["0.5"] * 40), ", ".join(["0.25"] * 40))
        expected = self.weights("many", normalize=one)
        self.assertEqual(self.weights("many", normalize=each), expected)
        self.assertEqual(self.weights("many", ranks=2, normalize=one), expected)
        emulated = ("--allow-faults", "--set", "debug.device=emulated")
        self.assertEqual(self.weights("many", *emulated, normalize=one), expected)
        stages = ("--set", "parallel.pipeline=2")
        self.assertEqual(self.weights("many", *stages, ranks=2, normalize=one), expected)
        changed = each.replace("0.5, ", "0.25, ", 1)
        self.assertNotEqual(self.weights("many", normalize=changed), expected)
        text = harness.run("inspect", "many", cwd=self.folder).text
        self.assertIn("[8,8,40]", text)

    def test_what_cannot_be_used_is_refused(self):
        def refused(text, *words, normalize=""):
            self.write_deck(DECK % normalize)
            result = self.train(*words, expect=2)
            self.assertIn(text, result.text)

        wide = pixels(3)
        self.write("train", wide.astype(np.int32))
        refused("train/part.h5: /images: contains signed integers of 32 bits; images are uint8,")
        self.write("train", wide.astype(np.float64))
        refused("train/part.h5: /images: contains real numbers of 64 bits; images are uint8,")
        self.write("train", wide)
        two = "normalize = { mean = [0.5, 0.5], std = [0.25, 0.25] }"
        refused("normalize has 2 channels, but the images of", normalize=two)
        # Values that are not finite.
        values = wide.astype(np.float16)
        values[11, 2, 3, 1] = np.inf
        self.write("train", values)
        saying = "sample 11 has a value that is infinite or NaN (row 2, column 3, channel 1)"
        for ranks in (1, 2):
            self.write_deck(DECK % "")
            self.assertIn(saying, self.train(ranks=ranks, expect=2).text)
        verified = harness.run("verify", "train", cwd=self.folder)
        self.assertEqual(verified.returncode, 2, verified.text)
        self.assertIn(saying, verified.text)
        # Scaling takes bytes.
        self.write("train", wide.astype(np.float32))
        refused(
            "train: holds float32 images, but only uint8 images can be scaled",
            "--set",
            "data.augment.random_crop=0",
            normalize="random_resized_crop = { size = 8 }",
        )
        # A validation set of another type.
        self.write("other", wide)
        self.write_deck(DECK % "")
        result = self.train("--set", "data.validation=other", expect=2)
        self.assertIn("holds uint8 images, but data.train float32 images", result.text)


if __name__ == "__main__":
    harness.main(at_once=2)
