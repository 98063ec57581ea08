# SPDX-License-Identifier: Apache-2.0
"""Tests vision transformers whose answer is a map: losses and outputs against a forward pass in
float64, and against PyTorch; layouts, predictions, and weights in and out.
"""

import math
import unittest

import harness

try:
    import h5py
    import numpy as np
    from map_twin import loss_of_classes, loss_of_numbers
    from mlp_twin import initial_weights
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, EVALUATED, HEIGHT, WIDTH, STEPS, GLOBAL, CLASSES = 48, 11, 6, 8, 20, 12, 3
PATCH, LAYERS, HEADS, COLUMNS = 2, 2, 2, 16
RATE = 0.1
# Differences between layouts, and from PyTorch in float64, are below 3e-8. A gradient that misses a
# half of the last norm changes the losses by 1e-5.
TOLERANCE = 2e-6
DECK = """
[run]
name = "maps"
folder = "run"
stop = "%d steps"
[model]
kind = "vit"
patch = %d
layers = %d
heads = %d
width = %d
mlp_ratio = 2
%%s
[data]
train = "train.h5"
validation = "validation.h5"
shuffle = "none"
[data.hdf5]
input = "x"
layout = "chw"
%%s
[batch]
global = %d
micro = 2
[optimizer]
kind = "sgd"
momentum = 0.9
clip_norm = 1
[schedule]
kind = "constant"
rate = %s
[evaluate]
every = "20 steps"
[checkpoint]
best = "loss"
[monitor]
every = "1 step"
tensorboard = false
""" % (STEPS, PATCH, LAYERS, HEADS, COLUMNS, GLOBAL, RATE)
PIXELS = 'target = "classes"\n[target]\nkind = "pixels"\nclasses = %d\nignore = 255' % CLASSES
FIELD = 'target = "field"\ntarget_layout = "chw"\n[target]\nkind = "field"'
LAYOUTS = (
    ((), 1),
    (("batch.micro=12",), 1),
    ((), 3),
    (("parallel.pipeline=2",), 2),
    (("parallel.tensor=2",), 2),
    (("parallel.tensor=2", "parallel.sequence=true", "batch.micro=6"), 4),
    (("debug.device=emulated",), 1),
)


def make(samples, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 2, HEIGHT, WIDTH)).astype(np.float32)
    near = x + np.roll(x, 1, 2)
    classes = np.digitize(near[:, 0], [-1, 1]).astype(np.uint8)
    classes[rng.random(classes.shape) < 0.2] = 255
    field = near.copy()
    field[rng.random(field.shape) < 0.1] = np.nan
    return x, classes, field


def in_patches(x):
    """Returns [n, patches, channels * PATCH^2] of [n, channels, h, w], as a convolution does."""
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // PATCH, PATCH, w // PATCH, PATCH)
    return x.transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, c * PATCH**2)


def forward(np_or_torch, w, patches):
    """Returns the map [n, h, w, outputs] of the weights, in numpy or in PyTorch."""
    erf = getattr(np_or_torch, "erf", np.vectorize(math.erf))
    n = len(patches)

    def linear(name, x):
        return x @ w[name + ".weight"].reshape(len(w[name + ".bias"]), -1).T + w[name + ".bias"]

    def norm(name, x):
        x = x - x.mean(-1)[..., None]
        scaled = x / ((x * x).mean(-1)[..., None] + 1e-6) ** 0.5
        return scaled * w[name + ".weight"] + w[name + ".bias"]

    x = linear("patch_embed.proj", patches)
    if "cls_token" in w:
        token = w["cls_token"] + 0 * x[:, :1]
        x = np_or_torch.concatenate((token, x), 1)
    x = x + w["pos_embed"]
    rows = x.shape[1]
    for i in range(LAYERS):
        block = "blocks.%d." % i
        qkv = linear(block + "attn.qkv", norm(block + "norm1", x))
        qkv = qkv.reshape(n, rows, 3, HEADS, -1).swapaxes(1, 3)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = q @ k.swapaxes(2, 3) / (COLUMNS / HEADS) ** 0.5
        p = np_or_torch.exp(scores)
        mixed = (p / p.sum(-1)[..., None]) @ v
        x = x + linear(block + "attn.proj", mixed.swapaxes(1, 2).reshape(n, rows, COLUMNS))
        z = linear(block + "mlp.fc1", norm(block + "norm2", x))
        x = x + linear(block + "mlp.fc2", z * (1 + erf(z / 2**0.5)) / 2)
    x = linear("head", norm("norm", x))[:, rows - HEIGHT * WIDTH // PATCH**2 :]
    x = x.reshape(n, HEIGHT // PATCH, WIDTH // PATCH, PATCH, PATCH, -1)
    return x.swapaxes(2, 3).reshape(n, HEIGHT, WIDTH, -1)


class VitMaps(harness.Case):
    def setUp(self):
        super().setUp()
        self.sets = {"train": make(SAMPLES, 1), "validation": make(EVALUATED, 2)}
        for name, (x, classes, field) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"], file["classes"], file["field"] = x, classes, field

    def data(self, split, kind):
        x, classes, field = self.sets[split]
        y = np.where(classes == 255, -1, classes.astype(int))
        return in_patches(x.astype(np.float64)), (
            y if kind is PIXELS else np.moveaxis(field, 1, 3).astype(np.float64)
        )

    def weights(self, folder):
        path = self.path(folder, "checkpoints/step_%09d.h5" % STEPS)
        with h5py.File(path) as file:
            return {name: tensor[:].astype(np.float64) for name, tensor in file["model"].items()}

    def losses_of_pytorch(self, kind, start):
        """Returns the losses of all steps; none without PyTorch."""
        try:
            import torch
        except ImportError:
            return None
        w = {name: torch.tensor(value, dtype=torch.float64) for name, value in start.items()}
        for tensor in w.values():
            tensor.requires_grad_()
        optimizer = torch.optim.SGD(w.values(), lr=RATE, momentum=0.9)
        patches, y = map(torch.from_numpy, self.data("train", kind))
        losses = []
        for step in range(STEPS):
            at = torch.arange(step * GLOBAL, (step + 1) * GLOBAL) % SAMPLES
            out = forward(torch, w, patches[at])
            if kind is PIXELS:
                loss = torch.nn.functional.cross_entropy(
                    out.reshape(-1, CLASSES), y[at].flatten(), ignore_index=-1
                )
            else:
                counts = y[at].isfinite()
                loss = torch.nn.functional.mse_loss(out[counts], y[at][counts])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(w.values(), 1)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def check(self, kind, pool):
        self.write_deck(DECK % ('pool = "%s"' % pool, kind))
        start = initial_weights(self)
        self.assertEqual("cls_token" in start, pool == "token")
        x, y = self.data("train", kind)
        loss = loss_of_classes if kind is PIXELS else loss_of_numbers
        first = loss(forward(np, start, x[:GLOBAL]), y[:GLOBAL])[0]
        expected = self.losses_of_pytorch(kind, start)
        for i, (settings, ranks) in enumerate(LAYOUTS):
            with self.subTest(kind=kind, pool=pool, settings=settings, ranks=ranks):
                folder = "run_%d" % i
                words = [word for setting in settings for word in ("--set", setting)]
                self.train("--allow-faults", "--set", "run.folder=" + folder, *words, ranks=ranks)
                rows = harness.read_rows(self.path(folder), "train")
                losses = [row["loss"] for row in rows]
                self.assertAlmostEqual(losses[0], first, delta=TOLERANCE)
                self.assertLess(losses[-1], 0.95 * losses[0])
                expected = expected or losses  # of one rank without PyTorch
                for a, b in zip(losses, expected, strict=True):
                    self.assertAlmostEqual(a, b, delta=TOLERANCE)
                row = harness.read_rows(self.path(folder), "evaluate")[-1]
                x_e, y_e = self.data("validation", kind)
                value = loss(forward(np, self.weights(folder), x_e), y_e)[0]
                self.assertAlmostEqual(row["loss"], value, delta=TOLERANCE)

    def test_pixels(self):
        self.check(PIXELS, "token")

    def test_pixels_without_a_class_token(self):
        self.check(PIXELS, "mean")

    def test_field(self):
        self.check(FIELD, "token")

    def test_field_without_a_class_token(self):
        self.check(FIELD, "mean")

    def test_rows_that_are_split_in_chunks(self):
        """The rows of a rank are cut by the width of the blocks, whatever a patch has."""
        rng = np.random.default_rng(4)
        x = rng.normal(size=(32, 32, 32)).astype(np.float32)
        with h5py.File(self.path("large.h5"), "w") as file:
            file["x"], file["y"] = x, x + np.roll(x, 1, 2)
        more = ("model.layers=1", "model.heads=4", "model.width=512", "model.mlp_ratio=0.0625")
        more += ("data.train=large.h5", "data.hdf5.target=y", "data.hdf5.layout=hw")
        more += ("data.hdf5.target_layout=hw", "batch.global=32", "batch.micro=32")
        more += ("run.stop=3 steps", "schedule.rate=0.01")
        self.write_deck(DECK % ("", FIELD))
        words = [word for setting in more for word in ("--set", setting)]
        words += [
            word
            for key in ("data.validation", "evaluate.every", "checkpoint.best")
            for word in ("--unset", key)
        ]
        split = ("--set", "parallel.tensor=2", "--set", "parallel.sequence=true")
        losses = {}
        for ranks, layout in ((1, ()), (2, split)):
            folder = "large_%d" % ranks
            self.train("--set", "run.folder=" + folder, *words, *layout, ranks=ranks)
            rows = harness.read_rows(self.path(folder), "train")
            losses[ranks] = [row["loss"] for row in rows]
        self.assertLess(losses[1][2], 0.999 * losses[1][0])
        for a, b in zip(losses[1], losses[2], strict=True):
            self.assertAlmostEqual(a, b, delta=TOLERANCE)

    def test_predictions(self):
        self.write_deck(DECK % ('pool = "token"', FIELD))
        self.train()
        checkpoint = "run/checkpoints/step_%09d.h5" % STEPS
        self.command("predict", checkpoint, "validation.h5", "--out", "found.h5")
        x, _ = self.data("validation", FIELD)
        expected = np.moveaxis(forward(np, self.weights("run"), x), 3, 1)
        with h5py.File(self.path("found.h5")) as file:
            found = file["value"][:]
        self.assertEqual(found.shape, (EVALUATED, HEIGHT, WIDTH, 2))
        self.assertLess(abs(np.moveaxis(found, 3, 1) - expected).max(), 1e-4)

    def test_weights_out_and_in(self):
        """Of square images, as import takes them."""
        for name, (x, _, field) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "a") as file:
                del file["x"], file["field"]
                file["x"], file["field"] = x[..., :HEIGHT], field[..., :HEIGHT]
        self.write_deck(DECK % ('pool = "token"', FIELD))
        self.train()
        checkpoint = "run/checkpoints/step_%09d.h5" % STEPS
        self.command("export", checkpoint, "--out", "w.safetensors")
        self.command("import", "w.safetensors", "deck.toml", "--out", "again.h5")
        found = []
        for path in (checkpoint, "again.h5"):
            words = ("--checkpoint", path, "--predictions", "found.h5", "--overwrite")
            self.command("evaluate", "deck.toml", *words)
            with h5py.File(self.path("found.h5")) as file:
                found.append(file["value"][:])
        np.testing.assert_array_equal(*found)
        words = ("import", "w.safetensors", "deck.toml", "--out", "x.h5", "--set", "model.patch=3")
        text = self.command(*words, expect=2)
        self.assertIn("head.weight has 8 rows, which are not those of the 9 pixels", text)

    def test_planned_and_refused(self):
        self.write_deck(DECK % ("", PIXELS))
        assumed = ("--assume", "fields:960,6x8x2,pixels:3")
        self.command("plan", "deck.toml", "--prove", "--ranks", "3", *assumed)
        self.assertIn("3 classes for each of 6 x 8 pixels", self.command("check", "deck.toml"))
        text = self.command("check", "deck.toml", "--set", "model.patch=4", expect=2)
        self.assertIn("model.patch: 4 does not divide images of 6 x 8 pixels", text)
        for name, (_, classes, _) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "a") as file:
                del file["classes"]
                file["classes"] = classes[:, ::2, ::2]
        text = self.command("check", "deck.toml", expect=2)
        self.assertIn("use targets with as many pixels as the samples", text)

    def test_a_head_of_another_answer_is_refused(self):
        """A classifier of 12 classes has a head of the same shape as one of 3 for 2 x 2 pixels."""
        for name in self.sets:
            with h5py.File(self.path(name + ".h5"), "a") as file:
                file["one"] = np.arange(len(file["x"])) % 12
                file["square"] = file["x"][..., :HEIGHT]
        self.write_deck(DECK % ("", 'target = "one"'))
        self.train("--set", "run.folder=one", "--set", "data.hdf5.input=square")
        checkpoint = "one/checkpoints/step_%09d.h5" % STEPS
        deck = DECK % ("", PIXELS)
        self.write_deck(deck)
        words = ("--restart", checkpoint, "--weights-only")
        text = self.train(*words, expect=2).text
        self.assertIn("head.weight is of another target.kind", text)
        self.assertIn("--skip 'head.*'", text)
        self.train(*words, "--skip", "head.*")
        self.command("export", checkpoint, "--out", "w.safetensors")
        self.write_deck(deck.replace("classes = 3", "classes = 4"))
        text = self.command("import", "w.safetensors", "deck.toml", "--out", "x.h5", expect=2)
        self.assertIn("has 3 outputs for each pixel, but target.classes = 4", text)

    def command(self, *words, expect=0):
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text


if __name__ == "__main__":
    unittest.main()
