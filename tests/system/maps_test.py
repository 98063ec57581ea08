# SPDX-License-Identifier: Apache-2.0
"""Tests targets that are maps, pixels and field: losses against a twin in float64 and PyTorch with
pixels that do not count, their metrics, layouts, restarts, augmentation, and what is refused.
"""

import os
import signal
import subprocess
import sys
import unittest

import harness

try:
    import h5py
    import numpy as np
    from PIL import Image
    from map_twin import MapTwin, loss_of_classes, loss_of_numbers, weighted_loss_of_classes
    from mlp_twin import initial_weights
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLES, EVALUATED, HEIGHT, WIDTH, STEPS, GLOBAL, CLASSES = 48, 11, 6, 8, 20, 12, 3
RATE, MOMENTUM = 0.2, 0.9
EMULATED = ("--allow-faults", "--set", "debug.device=emulated")
DECK = """
[run]
name = "maps"
folder = "run"
stop = "%d steps"
[model]
kind = "chain"
blocks = [
  { kind = "conv", channels = 6, kernel = 3, padding_mode = "periodic" },
  { kind = "activation", activation = "relu" },
  { kind = "conv", channels = 5, kernel = 3, padding_mode = "periodic" },
  { kind = "activation", activation = "relu" },
  { kind = "conv", channels = 3, kernel = 3, padding_mode = "periodic" },
]
[data]
train = "train.h5"
validation = "validation.h5"
shuffle = "none"
[data.hdf5]
input = "x"
target = %%s
target_layout = "%%s"
layout = "chw"
%%s
[batch]
global = %d
micro = 2
[optimizer]
kind = "sgd"
momentum = %s
[schedule]
kind = "constant"
rate = %s
[evaluate]
every = "10 steps"
[checkpoint]
every = "10 steps"
best = "%%s"
[monitor]
every = "1 step"
tensorboard = false
""" % (STEPS, GLOBAL, MOMENTUM, RATE)
PIXELS = (
    '"classes"',
    "hw",
    '[target]\nkind = "pixels"\nclasses = %d\nignore = 255' % CLASSES,
    "iou",
)
FIELD = (
    '["fluxes", "more"]',
    "chw",
    '[target]\nkind = "field"\nnormalize = { mean = [1, 0, 0], std = [2, 1, 1] }',
    "rmse",
)


def make(samples, seed):
    """Returns fields [n, 2, h, w], a class for each pixel with some to ignore, and three numbers
    for each pixel with some missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 2, HEIGHT, WIDTH)).astype(np.float32)
    near = x + np.roll(x, 1, 2) + np.roll(x, 1, 3)
    classes = np.digitize(near[:, 0], [-1, 1]).astype(np.uint8)
    classes[rng.random(classes.shape) < 0.2] = 255
    field = np.stack([1 + 2 * near[:, 0], near[:, 1] > 0, x[:, 0] * x[:, 1]], 1)
    field[rng.random(field.shape) < 0.1] = np.nan
    return x, classes, field


class Maps(harness.Case):
    def setUp(self):
        super().setUp()
        self.sets = {"train": make(SAMPLES, 1), "validation": make(EVALUATED, 2)}
        for name, (x, classes, field) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"] = x
                file["classes"] = classes
                file["fluxes"] = field[:, :2]
                file["more"] = field[:, 2:].astype(">f4")

    def rows(self, folder="run", kind="train"):
        return harness.read_rows(self.path(folder), kind)

    def data(self, split, kind):
        """Returns the inputs and targets of a split as a network takes them."""
        x, classes, field = self.sets[split]
        if kind is PIXELS:
            y = np.where(classes == 255, -1, classes.astype(int))
        else:
            y = np.moveaxis((field - [[[1]], [[0]], [[0]]]) / [[[2]], [[1]], [[1]]], 1, 3)
        return np.moveaxis(x, 1, 3).astype(np.float64), y

    def check_losses(self, kind, loss, loss_of_pytorch, *change):
        """Compares the losses of every layout with the twin's. Yields the twin and the last row of
        an evaluation."""
        self.write_deck(DECK % kind)
        weights = initial_weights(self)
        twin, again = (MapTwin(weights, RATE, MOMENTUM) for _ in range(2))
        x, y = self.data("train", kind)
        expected = []
        for step in range(STEPS):
            at = np.arange(step * GLOBAL, (step + 1) * GLOBAL) % SAMPLES
            expected.append(twin.step(loss, x[at], y[at]))
            try:
                import torch
            except ImportError:
                continue
            value = again.step_of_pytorch(loss_of_pytorch(torch), x[at], y[at])
            self.assertAlmostEqual(value, expected[-1], delta=1e-9)
        self.assertLess(expected[-1], 0.8 * expected[0])
        layouts = (
            ((), 1),
            (("--set", "batch.micro=12"), 1),
            ((), 2),
            ((), 3),
            (("--set", "parallel.pipeline=2"), 2),
            (EMULATED, 1),
            (("--set", "parallel.shard=gradients", *EMULATED), 2),
        )
        for i, (words, ranks) in enumerate(layouts):
            with self.subTest(layout=words, ranks=ranks):
                folder = "run_%d" % i
                self.train("--set", "run.folder=" + folder, *change, *words, ranks=ranks)
                found = [row["loss"] for row in self.rows(folder)]
                for a, b in zip(found, expected, strict=True):
                    self.assertAlmostEqual(a, b, delta=2e-4 * max(1, b))
                row = self.rows(folder, "evaluate")[-1]
                self.assertEqual(row["samples"], EVALUATED)
                x_e, y_e = self.data("validation", kind)
                plain = loss_of_classes if kind is PIXELS else loss
                value = plain(twin.forward(x_e)[1], y_e)[0]
                self.assertAlmostEqual(row["loss"], value, delta=2e-4 * max(1, value))
                yield twin, row

    def test_pixels(self):
        def of_pytorch(torch):
            loss = torch.nn.CrossEntropyLoss(ignore_index=-1)
            return lambda out, y: loss(out, y)

        for twin, row in self.check_losses(PIXELS, loss_of_classes, of_pytorch):
            x, y = self.data("validation", PIXELS)
            found = twin.forward(x)[1].argmax(-1)
            each = []
            for c in range(CLASSES):
                hits = ((found == c) & (y == c)).sum()
                either = (((found == c) | (y == c)) & (y >= 0)).sum()
                each.append((hits / either, hits / (y == c).sum()))
            for i, key in enumerate(("iou", "accuracy")):
                # A pixel between two classes may fall to the other one in float32.
                for a, b in zip(row[key + "_of"], each, strict=True):
                    self.assertAlmostEqual(a, b[i], delta=0.01)
            self.assertAlmostEqual(row["iou"], np.mean(row["iou_of"]), delta=1e-12)
            right = (found == y).sum() / (y >= 0).sum()
            self.assertAlmostEqual(row["accuracy"], right, delta=0.005)
            self.assertNotIn("top1", row)
            self.assertAlmostEqual(row["counted"], (y >= 0).mean(), delta=1e-12)

    def test_class_weights(self):
        weights = [0.5, 3, 0]

        def of_pytorch(torch):
            loss = torch.nn.CrossEntropyLoss(torch.tensor(weights).double(), ignore_index=-1)
            return lambda out, y: loss(out, y)

        loss = weighted_loss_of_classes(np.array(weights))
        change = ("--set", "loss.class_weights=%s" % weights)
        for _, row in self.check_losses(PIXELS, loss, of_pytorch, *change):
            self.assertLess(row["accuracy_of"][2], 0.5)  # nothing was learned of class 2
        text = self.train("--set", "loss.class_weights=[1, 2]", expect=2).text
        self.assertIn("has 2 numbers, but target.classes = 3", text)
        # Only their ratios matter.
        for i, scale in enumerate((1, 1e-200, 1e300)):
            scaled = "loss.class_weights=%s" % [weight * scale for weight in (1, 4, 2)]
            self.train("--set", scaled, "--set", "run.folder=scaled_%d" % i)
            self.assertEqual(self.digest("scaled_%d" % i), self.digest("scaled_0"))

    def test_field(self):
        def of_pytorch(torch):
            def loss(out, y):
                y = y.movedim(3, 1)
                return torch.nn.functional.mse_loss(out[y.isfinite()], y[y.isfinite()])

            return loss

        std = np.array([2, 1, 1])
        for twin, row in self.check_losses(FIELD, loss_of_numbers, of_pytorch):
            x, y = self.data("validation", FIELD)
            error = (twin.forward(x)[1] - y) * std
            squared, spread = np.nanmean(error**2, (0, 1, 2)), np.nanvar(y * std, (0, 1, 2))
            for key, expected in (
                ("rmse_of", np.sqrt(squared)),
                ("mae_of", np.nanmean(abs(error), (0, 1, 2))),
                ("r2_of", 1 - squared / spread),
            ):
                for a, b in zip(row[key], expected, strict=True):
                    self.assertAlmostEqual(a, b, delta=2e-4 * max(1, b))
            self.assertAlmostEqual(row["rmse"], np.sqrt(np.nanmean(error**2)), delta=1e-3)

    def digest(self, folder):
        path = self.path(folder, "checkpoints/step_%09d.h5" % STEPS)
        return harness.run("inspect", path, "--digest").stdout.split()[-1]

    def test_the_same_bits_at_every_layout_and_after_a_kill(self):
        more = ("run.deterministic=true", "batch.global=16")
        moved = ("data.augment.flip=true", "data.augment.random_crop=2", "data.shuffle=full")
        words = [word for setting in more + moved for word in ("--set", setting)]
        for kind in (PIXELS, FIELD):
            self.write_deck(DECK % kind)
            digests, name = {}, kind[-1]
            for ranks in (1, 2, 4):
                folder = "%s_%d" % (name, ranks)
                self.train("--set", "run.folder=" + folder, *words, ranks=ranks)
                digests[ranks] = self.digest(folder)
            killed = "%s_killed" % name
            process, _, held = self.start_held(*words, "--set", "run.folder=" + killed, step=13)
            os.kill(held, signal.SIGKILL)
            process.communicate()
            self.train(*words, "--set", "run.folder=" + killed, ranks=2)
            digests["killed"] = self.digest(killed)
            self.assertEqual(len(set(digests.values())), 1, digests)
            first, *rest = (self.rows("%s_%d" % (name, r), "evaluate")[-1] for r in (1, 2, 4))
            for row in rest:
                self.assertAlmostEqual(row[name], first[name], delta=1e-9)
                self.assertAlmostEqual(row["loss"], first["loss"], delta=1e-9)

    def test_maps_move_with_their_images(self):
        """Where the target is the input, a network of one weight learns it without an error, unless
        their crops or mirror images differ."""
        for name in ("train", "validation"):
            with h5py.File(self.path(name + ".h5"), "a") as file:
                file["same"] = file["x"][:, 0]
                file["sign"] = (file["x"][:, 0] > 0).astype("i8")
        identity = """
[run]
name = "identity"
folder = "run"
stop = "80 steps"
[model]
kind = "chain"
blocks = [{ kind = "conv", channels = %d, kernel = 1 }]
[data]
train = "train.h5"
validation = "validation.h5"
[data.hdf5]
input = "x"
target = "%s"
layout = "chw"
[data.augment]
random_crop = 3
flip = true
[target]
%s
[batch]
global = 12
micro = 4
[optimizer]
kind = "sgd"
momentum = 0
[schedule]
kind = "constant"
rate = %s
[monitor]
every = "1 step"
"""
        for fill in (
            (1, "same", 'kind = "field"', 0.2),
            (2, "sign", 'kind = "pixels"\nclasses = 2', 20),
        ):
            self.write_deck(identity % fill)
            self.train("--set", "run.folder=" + fill[1])
            loss = self.rows(fill[1])[-1]["loss"]
            self.assertLess(loss, 1e-6 if fill[1] == "same" else 0.1)

    def test_planned(self):
        for kind, form, words in (
            (PIXELS, "pixels:3", "3 classes for each of 6 x 8 pixels"),
            (FIELD, "field:3", "3 components for each of 6 x 8 pixels"),
        ):
            self.write_deck(DECK % kind)
            assumed = ("--assume", "fields:960,6x8x2," + form)
            result = harness.run("check", "deck.toml", *assumed, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            self.assertIn(words, result.stdout)
            result = harness.run(
                "plan", "deck.toml", "--prove", "--ranks", "3", *assumed, cwd=self.folder
            )
            self.assertEqual(result.returncode, 0, result.text)
        wrong = harness.run(
            "check", "deck.toml", "--assume", "fields:960,6x8x2,pixels:3", cwd=self.folder
        )
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("write fields:COUNT,HxWxC,field:N", wrong.text)
        words = ("check", "deck.toml", "--assume", "fields:9,6x8x2,fields:3")
        wrong = harness.run(*words, cwd=self.folder)
        self.assertIn('"fields:3" is no target', wrong.text)
        text = harness.run("check", "deck.toml", cwd=self.folder).text
        self.assertIn("targets are checked when training reads them", text)

    def test_a_map_smaller_than_its_image(self):
        """A network with a stride of two answers for every second pixel; crops cannot move both."""
        self.write_deck(
            (DECK % PIXELS).replace("kernel = 3, padding", "kernel = 4, stride = 2, padding", 1)
        )
        for name, (_, classes, _) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "a") as file:
                del file["classes"]
                file["classes"] = classes[:, ::2, ::2]
        self.train("--set", "data.augment.flip=true")
        row = self.rows(kind="evaluate")[-1]
        self.assertEqual(len(row["iou_of"]), CLASSES)
        text = self.train("--set", "data.augment.random_crop=1", expect=2).text
        self.assertIn("random_crop shifts samples and targets by the same pixels", text)
        text = self.train("--set", "data.augment.random_crop=3", expect=2).text
        self.assertIn("can shift all targets out of the samples", text)

    def test_clipped_gradients(self):
        """clip_norm limits the norm of the mean over the pixels that count."""
        self.write_deck(DECK % PIXELS)
        weights, clip_norm = initial_weights(self), 0.05
        twin, free = (MapTwin(weights, RATE, MOMENTUM) for _ in range(2))
        x, y = self.data("train", PIXELS)
        self.train("--set", "optimizer.clip_norm=%s" % clip_norm, ranks=2)
        for step, row in enumerate(self.rows()):
            at = np.arange(step * GLOBAL, (step + 1) * GLOBAL) % SAMPLES
            expected = twin.step(loss_of_classes, x[at], y[at], clip_norm)
            self.assertAlmostEqual(row["loss"], expected, delta=2e-4)
            unclipped = free.step(loss_of_classes, x[at], y[at])
        self.assertGreater(abs(unclipped - expected), 0.01)

    def test_steps_without_targets(self):
        """They are skipped and are no sign of trouble, however many; also the last one."""
        with h5py.File(self.path("train.h5"), "a") as file:
            file["classes"][GLOBAL:] = 255  # three of four steps
        self.write_deck(DECK % PIXELS)
        for words in ((), ("--set", "health.skip_nonfinite=false")):
            folder = "run_%d" % len(words)
            text = self.train("--set", "run.folder=" + folder, *words).text
            self.assertEqual(text.count("no label of its samples counts"), 1, text)
            self.assertIn("step 2: no label of its samples counts", text)
            rows = self.rows(folder)
            self.assertEqual([row["loss"] is None for row in rows], 5 * [False, True, True, True])
            self.assertLess(rows[-4]["loss"], rows[0]["loss"])

    def test_evaluations_without_targets(self):
        """Nothing is known of them, so no checkpoint is the best."""
        with h5py.File(self.path("validation.h5"), "a") as file:
            file["classes"][:] = 255
        self.write_deck(DECK % PIXELS)
        for best in ("iou", "loss"):
            self.train("--set", "run.folder=" + best, "--set", "checkpoint.best=" + best)
            row = self.rows(best, "evaluate")[-1]
            self.assertEqual([row[key] for key in ("counted", "loss", "iou")], [0, None, None])
            self.assertFalse(os.path.exists(self.path(best, "checkpoints/best.h5")))

    def test_forms_of_the_same_targets(self):
        """Types, packing and marks of what does not count make no difference."""
        x, classes, field = self.sets["train"]
        first, runs = {}, 0
        for kind, name, stored, attributes, change in (
            (PIXELS, "classes", classes, {}, ""),
            (PIXELS, "classes", np.where(classes == 255, np.nan, classes), {}, ""),
            (PIXELS, "classes", np.where(classes == 255, -np.inf, classes), {}, ""),
            (
                PIXELS,
                "classes",
                np.where(classes == 255, -9, classes).astype(">i8"),
                {},
                "ignore=-9",
            ),
            (PIXELS, "classes", classes, {"_FillValue": np.uint8(255)}, "ignore=9"),
            (
                PIXELS,
                "classes",
                np.where(classes == 255, 100, classes.astype("i2") * 10).astype("i2"),
                {"scale_factor": 0.1, "missing_value": np.int16(100)},
                "",
            ),
            (
                PIXELS,
                "classes",
                np.where(classes == 255, -9999, classes).astype("f2"),
                {},
                "ignore=-9999",
            ),
            (
                PIXELS,
                "classes",
                np.where(classes == 255, -9999.0, classes).astype("f2"),
                {"_FillValue": -9999.0},
                "",
            ),
            (FIELD, "more", field[:, 2:].astype("f4"), {}, ""),
            (FIELD, "more", np.nan_to_num(field[:, 2:].astype("f4"), nan=np.inf), {}, ""),
            (
                FIELD,
                "more",
                np.nan_to_num(field[:, 2:].astype("f4"), nan=-1e20),
                {},
                "ignore=-1e20",
            ),
        ):
            with h5py.File(self.path("train.h5"), "a") as file:
                del file[name]
                file[name] = stored
                file[name].attrs.update(attributes)
            self.write_deck(DECK % kind)
            change = ("--set", "target." + change) if change else ()
            words = ("--set", "data.validation=", "--unset", "checkpoint.best")
            runs += 1
            words += ("--unset", "evaluate.every", "--set", "run.folder=run_%d" % runs)
            self.train(*words, *change)
            found = [row["loss"] for row in self.rows("run_%d" % runs)]
            self.assertEqual(first.setdefault(name, found), found, (name, attributes, change))

    def test_the_picture_of_samples(self):
        """It has the classes of each sample below it, moved as the sample is."""
        self.write_deck(DECK % PIXELS)
        words = ("check", "deck.toml", "--images", "sheet.png", "--set", "data.augment.flip=true")
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("; their targets below them", result.stdout)
        picture = np.array(Image.open(self.path("sheet.png")))
        colors = np.array([[0, 0, 0], [230, 159, 0], [86, 180, 233], [255, 255, 255]])
        zoom, gap, flips = 64 // WIDTH, 4, 0
        height = HEIGHT * zoom + gap
        for column in range(8):
            expected = self.sets["train"][1][column * SAMPLES // 8]
            expected = colors[np.where(expected == 255, 3, expected)]
            for row in range(6):
                top, left = gap + (2 * row + 1) * height, gap + column * (WIDTH * zoom + gap)
                tile = picture[top : top + HEIGHT * zoom : zoom, left : left + WIDTH * zoom : zoom]
                flipped = not (tile == expected).all()
                flips += flipped
                self.assertTrue((tile == (expected[:, ::-1] if flipped else expected)).all())
        self.assertTrue(0 < flips < 48)

    def test_the_example(self):
        """inputs/examples/masks.toml, for two of its six epochs."""
        script = os.path.join(ROOT, "scripts/make_masks.py")
        subprocess.run([sys.executable, script, self.path("data/masks")], check=True)
        deck = os.path.join(ROOT, "inputs/examples/masks.toml")
        self.train("--set", "run.stop=2 epochs", deck=deck, threads=2)
        row = self.rows("runs/masks", "evaluate")[-1]
        self.assertEqual((row["split"], row["samples"]), ("test", 200))
        self.assertGreater(row["iou"], 0.85)

    def test_what_is_refused(self):
        x, classes, field = self.sets["train"]
        for kind, name, value, words in (
            (
                PIXELS,
                "classes",
                classes.astype("i4") - 1,
                "sample 0 has 254 at (h 0, w 1), which is no class",
            ),
            (PIXELS, "classes", classes + 1.5, "has 2.5 at (h 0, w 0)"),
            (
                PIXELS,
                "classes",
                np.where(classes == 255, 3, classes),
                "/classes: sample 0 has 3 at (h 0",
            ),
            (PIXELS, "classes", classes[:, :, 1:], "has targets of 6 x 7 (height, width), but"),
            (PIXELS, "classes", classes.swapaxes(1, 2), "exchange h and w in data.hdf5.layout, "),
            (PIXELS, "classes", np.eye(3)[classes % 3].transpose(0, 3, 1, 2), "[samples, h, w]"),
            (FIELD, "more", 1e39 * field[:, 2:], ", too large for float32 after target.normalize"),
            (PIXELS, "classes", classes[:, 0], "target_layout"),
            (PIXELS, "classes", classes[1:], "has 47 samples, but"),
            (PIXELS, "classes", classes[..., None], "target_layout"),
            (FIELD, "fluxes", field[:, :1], "target.normalize has 3 numbers"),
            (FIELD, "fluxes", field[:, :2, 1:], "more"),
            (FIELD, "fluxes", field[:, :0], "fluxes"),
        ):
            with self.subTest(words):
                with h5py.File(self.path("train.h5"), "w") as file:
                    for key, data in (
                        {"x": x, "classes": classes, "fluxes": field[:, :2], "more": field[:, 2:]}
                        | {name: value}
                    ).items():
                        file[key] = data
                self.write_deck(DECK % kind)
                alone = ("--set", "data.validation=", "--unset", "checkpoint.best")
                result = self.train(*alone, "--unset", "evaluate.every", expect=2)
                self.assertIn(words, result.text)


if __name__ == "__main__":
    unittest.main()
