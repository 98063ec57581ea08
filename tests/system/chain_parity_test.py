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
    import safetensors.torch
    import torch
    from torch import nn
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
# Dilated and periodic convolutions with and without strides, of odd and even kernels, and larger
# images.
FIELDS = """
[model]
kind = "chain"
blocks = [
{ kind = "conv", channels = 8, kernel = 3, dilation = 2, padding_mode = "periodic", bias = false },
{ kind = "norm", norm = "group", groups = 4 },
{ kind = "activation" },
{ kind = "pool", pool = "mean" },
{ kind = "conv", channels = 12, kernel = 5, stride = 2, dilation = 2, padding = 4 },
{ kind = "activation", activation = "silu" },
{ kind = "upsample", factor = 3 },
{ kind = "residual", body = [
  { kind = "conv", channels = 12, kernel = 4, dilation = 3, padding_mode = "periodic" },
] },
{ kind = "conv", channels = 12, kernel = 3, stride = 3, padding = 2, padding_mode = "periodic" },
{ kind = "activation" },
{ kind = "flatten" },
{ kind = "linear", width = 10 },
]
"""


def fields_in_torch():
    """Returns the network of FIELDS in PyTorch."""

    class Residual(nn.Module):
        def __init__(self, *body):
            super().__init__()
            self.body = nn.Sequential(*body)

        def forward(self, x):
            return x + self.body(x)

    class Flatten(nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1).flatten(1)

    return nn.Sequential(
        nn.Conv2d(1, 8, 3, dilation=2, padding=2, padding_mode="circular", bias=False),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 5, stride=2, dilation=2, padding=4),
        nn.SiLU(),
        nn.Upsample(scale_factor=3, mode="nearest"),
        Residual(nn.Conv2d(12, 12, 4, dilation=3, padding="same", padding_mode="circular")),
        nn.Conv2d(12, 12, 3, stride=3, padding=2, padding_mode="circular"),
        nn.ReLU(),
        Flatten(),
        nn.Linear(8 * 8 * 12, 10),
    )


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

    def shards(self, name):
        """Returns a dataset of all shards, as one array."""
        parts = []
        for shard in sorted(glob.glob(self.path("data/pixels/*.h5"))):
            with h5py.File(shard) as stored:
                parts.append(torch.from_numpy(stored[name][:]))
        return torch.cat(parts)

    @unittest.skipIf(MISSING, MISSING)
    def test_fields_train_as_in_pytorch(self):
        self.start(FIELDS, "first", 1)
        self.call("export", "first/checkpoints/step_000000001.h5", "--out", "a.safetensors")
        self.call("import", "a.safetensors", "first.toml", "--out", "a.h5")
        losses = self.start(FIELDS, "fields", STEPS, "--restart", "a.h5", "--weights-only")
        last = "fields/checkpoints/step_%09d.h5" % STEPS
        self.call("export", last, "--out", "b.safetensors")

        def weights(file):
            tensors = safetensors.torch.load_file(self.path(file))
            return {name.removeprefix("blocks."): tensor for name, tensor in tensors.items()}

        torch.set_num_threads(1)
        model = fields_in_torch()
        model.load_state_dict(weights("a.safetensors"))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        images = (self.shards("images")[..., 0].unsqueeze(1).float() / 255 - 0.2860) / 0.3530
        labels = self.shards("labels").long()
        for step, loss in enumerate(losses):
            rows = slice(32 * step, 32 * step + 32)
            expected = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            self.assertLess(abs(expected.item() - loss) / loss, 2e-5, step)
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], 0.9 * losses[0])
        trained = model.state_dict()
        for name, tensor in weights("b.safetensors").items():
            difference = (trained[name] - tensor).norm() / tensor.norm()
            self.assertLess(difference.item(), 1e-4, name)

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
