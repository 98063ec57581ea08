# SPDX-License-Identifier: Apache-2.0
"""A small network on files of other programs, for the tests of [data.hdf5]."""

import os

import harness

try:
    import h5py
    import numpy as np
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, CLASSES, SIDE = 48, 4, 8
DECK = """
[run]
name = "arrays"
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
LABELS = np.arange(SAMPLES) % CLASSES


def fields(channels=1):
    """Returns fields [samples, h, w, c] of float32, quarters of whole numbers, and so exact in
    every type that the tests use."""
    rng = np.random.default_rng(7)
    values = rng.integers(-200, 200, (SAMPLES, SIDE, SIDE, channels)) / 4
    values[LABELS == 1, :4] += 55
    return values.astype(np.float32)


class ArrayCase(harness.Case):
    def setUp(self):
        super().setUp()
        self.runs = 0
        self.x = fields()

    def shard(self, images, folder="shard"):
        """Writes the reference: a shard of images [samples, h, w, c]."""
        os.makedirs(self.path(folder), exist_ok=True)
        with h5py.File(self.path(folder, "part.h5"), "w") as file:
            file.attrs["format"] = "trireme-shard"
            file.create_dataset("images", data=images)
            file.create_dataset("labels", data=LABELS.astype(np.int32))
            file["images"].attrs["layout"] = "hwc"

    def weights(self, place, table="", *words, ranks=1):
        """Trains on `place`; returns the digest of the weights."""
        self.write_deck(DECK % table)
        self.runs += 1
        run = "run_%d" % self.runs
        sets = ("--set", "data.train=" + place, "--set", "data.validation=" + place)
        self.train(*sets, "--set", "run.folder=" + run, *words, ranks=ranks)
        path = self.path(run, "checkpoints/step_000000010.h5")
        result = harness.run("inspect", path, "--digest", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.text.split()[-1]

    def table(self, input="x", target="y", layout="hw", more=""):
        paths = lambda given: '"%s"' % given if isinstance(given, str) else str(list(given))
        return '[data.hdf5]\ninput = %s\ntarget = %s\nlayout = "%s"\n%s' % (
            paths(input),
            paths(target),
            layout,
            more,
        )

    def write(self, name, **datasets):
        """Writes an HDF5 file. A value is an array, or an array with options of h5py."""
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with h5py.File(self.path(name), "w") as file:
            for path, value in datasets.items():
                data, options = value if isinstance(value, tuple) else (value, {})
                file.create_dataset(path, data=data, **options)

    def refuse(self, words, *arguments, table=None):
        """Checks that a run on the file ends with exit 2 and a message with `words`."""
        self.write_deck(DECK % (table or self.table()))
        result = self.train("--set", "data.train=other/a.h5", *arguments, expect=2)
        self.assertIn(words, result.text)
        self.assertFalse(os.path.exists(self.path("run")))
