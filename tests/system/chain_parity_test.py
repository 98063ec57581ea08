# SPDX-License-Identifier: Apache-2.0
"""Tests that chains compute what built-in models of the same weights do, and what PyTorch does."""

import glob
import gzip
import os
import subprocess
import sys
import unittest

import harness

try:
    import h5py
    import safetensors  # noqa: F401 (chain_in_torch.py needs it)
    import torch  # noqa: F401
except ImportError as error:
    MISSING = str(error)
else:
    MISSING = ""

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS = 20
DECK = """
[run]
name = "parity"
folder = "%(folder)s"
stop = "%(steps)d steps"
%(model)s
[data]
train = "data/pixels"
shuffle = "none"
workers = 1
[data.augment]
normalize = { mean = [0.2860], std = [0.3530] }
[batch]
global = 32
micro = 16
[optimizer]
kind = "sgd"
momentum = 0.9
[schedule]
kind = "constant"
rate = 1e-2
[monitor]
every = "1 step"
tensorboard = false
"""
BUILT_IN = {
    "resnet20": 'kind = "resnet"\ndepth = 20\nwidth = 16\nstem = "small"',
    "vit": 'kind = "vit"\npool = "mean"\npatch = 4\nlayers = 4\nheads = 4\nwidth = 64\n'
    "mlp_ratio = 2",
}


def model_of_example(name):
    """Returns the table [model] of a deck of inputs/examples."""
    with open(REPOSITORY + "/inputs/examples/chain_%s.toml" % name) as file:
        text = file.read()
    return text[text.index("[model]") : text.index("[data]")]


class ChainParity(harness.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        harness.make_dataset(cls.shared + "/pixels", 640, size=28, classes=10)

    def call(self, *arguments):
        result = harness.run(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.text

    def script(self, name, *arguments):
        result = subprocess.run(
            [sys.executable, REPOSITORY + "/scripts/" + name, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(result.returncode, 0, result.stdout)

    def start(self, model, folder, steps, *more):
        deck = folder + ".toml"
        self.write_deck(DECK % {"model": model, "folder": folder, "steps": steps}, deck)
        self.call("train", deck, *more)
        return [row["loss"] for row in harness.read_rows(self.path(folder), "train")]

    def test_chains_of_built_in_models(self):
        for name, keys in BUILT_IN.items():
            with self.subTest(name):
                built_in, chain = "[model]\n" + keys, model_of_example(name)
                self.start(built_in, "first", 1)
                self.call("export", "first/checkpoints/step_000000001.h5", "--out", "a.safetensors")
                self.script("chain_names.py", "a.safetensors", "b.safetensors")
                losses = []
                for file, model in (("a", built_in), ("b", chain)):
                    self.write_deck(
                        DECK % {"model": model, "folder": file, "steps": STEPS}, "x.toml"
                    )
                    self.call("import", file + ".safetensors", "x.toml", "--out", file + ".h5")
                    losses.append(
                        self.start(model, file, STEPS, "--restart", file + ".h5", "--weights-only")
                    )
                self.assertEqual(len(losses[0]), STEPS)
                self.assertLess(losses[0][-1], 0.9 * losses[0][0])
                self.assertLess(abs(losses[0][0] - losses[1][0]) / losses[0][0], 1e-6)
                for a, b in zip(*losses, strict=True):
                    self.assertLess(abs(a - b) / a, 2e-5)
                for file in ("first", "a", "b"):
                    os.rename(self.path(file), self.path(name + "-" + file))
                for file in ("a.safetensors", "a.h5", "b.h5"):
                    os.remove(self.path(file))

    @unittest.skipIf(MISSING, MISSING)
    def test_the_vgg_in_pytorch(self):
        self.start(model_of_example("vgg"), "run", 4)
        self.call("export", "run/checkpoints/step_000000004.h5", "--out", "vgg.safetensors")
        self.call(
            *("evaluate", "run.toml", "--checkpoint", "run/checkpoints/step_000000004.h5"),
            *("--split", "train", "--predictions", "predictions.h5", "--logits"),
        )
        with gzip.open(self.path("images.gz"), "wb") as file:
            file.write(b"\0" * 16)
            for shard in sorted(glob.glob(self.path("data/pixels/*.h5"))):
                with h5py.File(shard) as stored:
                    file.write(stored["images"][:].tobytes())
        self.script("chain_in_torch.py", "vgg.safetensors", "predictions.h5", "images.gz")


if __name__ == "__main__":
    unittest.main()
