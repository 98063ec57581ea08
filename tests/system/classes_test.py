# SPDX-License-Identifier: Apache-2.0
"""Tests targets that are several classes: losses against a twin in float64 and PyTorch, F1,
precision and recall, layouts, predictions, mixed targets, and targets that are not allowed.
"""

import json
import unittest

import harness

try:
    import h5py
    import numpy as np
    from mlp_twin import LAYERS, MlpTwin, initial_weights
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, EVALUATED, SIDE, CLASSES, STEPS, GLOBAL = 96, 23, 4, 4, 20, 12
RATE, MOMENTUM = 0.5, 0.9
HEAD = LAYERS[-1]
DECK = """
[run]
name = "classes"
folder = "run"
stop = "%d steps"
[model]
kind = "mlp"
widths = [16, 16]
[data]
train = "train.h5"
validation = "validation.h5"
shuffle = "none"
[data.hdf5]
input = "x"
target = ["some", "last"]
layout = "hw"
[target]
kind = "classes"
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
best = "f1"
[monitor]
every = "1 step"
tensorboard = false
""" % (STEPS, GLOBAL, MOMENTUM, RATE)


def make(samples, seed):
    """Returns fields [n, 4, 4], and whether each class is there."""
    x = np.random.default_rng(seed).normal(size=(samples, SIDE, SIDE))
    y = np.stack([x.mean((1, 2)) > 0, x[:, 0].sum(1) > 1, x[:, 1, 1] > -1, x[:, 2, 2] > 2], 1)
    return x.astype(np.float32), y


class Classes(harness.Case):
    def setUp(self):
        super().setUp()
        self.sets = {"train": make(SAMPLES, 1), "validation": make(EVALUATED, 2)}
        for name, (x, y) in self.sets.items():
            self.write(name, x, y)
        self.write_deck(DECK)

    def write(self, name, x, y):
        with h5py.File(self.path(name + ".h5"), "w") as file:
            file["x"] = x
            file["some"] = y[:, :3]  # bool, which h5py stores as an enum
            file["last"] = y[:, 3].astype(">f4")

    def rows(self, folder="run", kind="train"):
        return harness.read_rows(self.path(folder), kind)

    def scores(self, out):
        """F1, precision and recall of each class, and their means over those that have them."""
        y, found = self.sets["validation"][1], out > 0
        hits, wanted, given = (y & found).sum(0), y.sum(0), found.sum(0)
        with np.errstate(invalid="ignore"):
            each = np.stack([2 * hits / (wanted + given), hits / given, hits / wanted])
        return each, np.nanmean(each, 1)

    def test_losses_and_scores_of_a_twin(self):
        x, y = self.sets["train"]
        x, y = x.reshape(SAMPLES, -1).astype(np.float64), y.astype(np.float64)
        weights = initial_weights(self)
        twin, again = (MlpTwin(weights, RATE, MOMENTUM) for _ in range(2))
        expected = []
        for step in range(STEPS):
            at = np.arange(step * GLOBAL, (step + 1) * GLOBAL) % SAMPLES
            expected.append(twin.step("binary-cross-entropy", x[at], y[at]))
            try:
                import torch
            except ImportError:
                continue
            value = again.step_of_pytorch(torch.nn.BCEWithLogitsLoss(), x[at], y[at])
            self.assertAlmostEqual(value, expected[-1], delta=1e-9)
        inputs = self.sets["validation"][0].reshape(EVALUATED, -1).astype(np.float64)
        each, means = self.scores(twin.forward(inputs)[1])
        self.assertGreater(means[0], 0.3)
        layouts = (
            ((), 1),
            (("--set", "batch.micro=12"), 1),
            ((), 2),
            ((), 3),
            (("--set", "parallel.pipeline=2"), 2),
        )
        for i, (words, ranks) in enumerate(layouts):
            with self.subTest(layout=words, ranks=ranks):
                folder = "run_%d" % i
                self.train("--set", "run.folder=" + folder, *words, ranks=ranks)
                found = [row["loss"] for row in self.rows(folder)]
                for a, b in zip(found, expected, strict=True):
                    self.assertAlmostEqual(a, b, delta=2e-4 * max(1, b))
                row = self.rows(folder, "evaluate")[-1]
                self.assertEqual(row["samples"], EVALUATED)
                for key, of, mean in zip(("f1", "precision", "recall"), each, means):
                    self.assertAlmostEqual(row[key], mean, delta=1e-9)
                    for a, b in zip(row[key + "_of"], of, strict=True):
                        self.assertTrue(a is None and np.isnan(b) or abs(a - b) < 1e-9, (a, b))
                self.assertNotIn("top1", row)

    def test_the_same_bits(self):
        digests = set()
        for ranks in (1, 2, 4):
            words = ("batch.global=16", "run.deterministic=true", "run.folder=run_%d" % ranks)
            self.train(*(w for word in words for w in ("--set", word)), ranks=ranks)
            path = self.path("run_%d/checkpoints/step_%09d.h5" % (ranks, STEPS))
            digests.add(harness.run("inspect", path, "--digest").stdout.split()[-1])
        self.assertEqual(len(digests), 1)

    def test_evaluate(self):
        result = self.train()
        self.assertRegex(result.text, r"validation at step 20 .*: loss [0-9.]+, F1 [0-9.]+ %, prec")
        best = max(self.rows(kind="evaluate"), key=lambda row: row["f1"])
        path = self.path("run/checkpoints/best.h5")
        words = ("evaluate", "run/deck.toml", "--checkpoint", path)
        for ranks in (1, 2):
            name = "predictions_%d.h5" % ranks
            result = harness.run(
                *words, "--json", "--predictions", name, cwd=self.folder, ranks=ranks
            )
            self.assertEqual(result.returncode, 0, result.text)
            found = json.loads(result.stdout)
            self.assertAlmostEqual(found["f1"], best["f1"], delta=1e-9)
            self.assertEqual(len(found["classes"]), CLASSES)
            with h5py.File(self.path(name)) as file:
                target, probability = file["target"][:], file["probability"][:]
            self.assertTrue((target == self.sets["validation"][1]).all())
            self.assertTrue(((probability > 0) & (probability < 1)).all())
            each, means = self.scores(probability - 0.5)
            self.assertAlmostEqual(found["f1"], means[0], delta=1e-9)
            self.assertAlmostEqual(found["classes"][2]["precision"], each[1, 2], delta=1e-9)
        text = harness.run(*words, cwd=self.folder).stdout
        self.assertEqual(text.count("class "), CLASSES)
        self.assertRegex(text, r"class 0: F1 [0-9.]+ %, precision")
        result = harness.run("predict", path, "validation.h5", "--out", "new.h5", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        with h5py.File(self.path("new.h5")) as file:
            self.assertTrue((file["probability"][:] == probability).all())
        for option in (("--confusion", "a.csv"), ("--worst", "a.svg"), ("--flip",)):
            result = harness.run(*words, *option, cwd=self.folder)
            self.assertEqual(result.returncode, 2)
            self.assertIn('target.kind is "classes"', result.text)
        result = harness.run("report", "run", "--json", cwd=self.folder)
        self.assertIn('"f1"', result.stdout)

    def test_mixed_targets(self):
        """Where all outputs are 0, half the gradient of two classes of which each sample has one is
        that of cross-entropy."""
        with h5py.File(self.path("train.h5"), "a") as file:
            has = file["some"][:, 0]
            file["one"] = has.astype(int)
            file["pair"] = np.stack([~has, has], 1)
        for name, kind, target in (("one", "class", "one"), ("pair", "classes", "pair")):
            deck = DECK.replace('kind = "classes"', 'kind = "%s"' % kind)
            deck = deck.replace('target = ["some", "last"]', 'target = "%s"' % target)
            self.write_deck(deck, name + ".toml")
            self.start_at_zero(name)
        for mixing in (None, "mixup", "cutmix"):
            steps = {name: self.step_from_zero(name, mixing) for name in ("one", "pair")}
            for tensor in ("weight", "bias"):
                wanted = steps["one"][tensor] / 2
                self.assertGreater(abs(wanted).max(), 1e-3)
                np.testing.assert_allclose(steps["pair"][tensor], wanted, rtol=1e-4, atol=1e-6)
            if mixing is None:
                plain = steps
            else:
                change = abs(steps["pair"]["weight"] - plain["pair"]["weight"]).max()
                self.assertGreater(change, 1e-2 * abs(plain["pair"]["weight"]).max(), mixing)

    def train_one_step(self, name, *words, more=()):
        words = ("run.stop=1 step", "data.validation=", "batch.micro=4", *words)
        sets = (w for word in words for w in ("--set", word))
        unset = ("--unset", "checkpoint.best", "--unset", "evaluate.every")
        self.train(*sets, *unset, *more, deck=name + ".toml")

    def start_at_zero(self, name):
        """Writes a checkpoint whose last layer is 0, and whose other weights are equal for all
        names."""
        self.train_one_step(name, "run.folder=start_" + name, "schedule.rate=1e-30")
        path = self.path("start_%s/checkpoints/step_000000001.h5" % name)
        with h5py.File(path) as source, h5py.File(self.path(name + ".h5"), "w") as file:
            source.copy("model", file)
            file.attrs.update(source.attrs)
            for name in ("weight", "bias"):
                tensor = file["model/%s.%s" % (HEAD, name)]
                tensor[...] = 0
                del tensor.attrs["digest"]

    def step_from_zero(self, name, mixing):
        """Returns the last layer after one step."""
        folder = "%s_%s" % (name, mixing)
        words = ["run.folder=" + folder] + ["data.augment.%s=0.3" % mixing] * (mixing is not None)
        restart = ("--restart", self.path(name + ".h5"), "--weights-only")
        self.train_one_step(name, *words, more=restart)
        with h5py.File(self.path(folder, "checkpoints/step_000000001.h5")) as file:
            return {
                tensor: file["model/%s.%s" % (HEAD, tensor)][:] for tensor in ("weight", "bias")
            }

    def test_a_class_that_never_occurs(self):
        x, y = self.sets["validation"]
        y[:, 3] = False
        self.write("validation", x, y)
        self.train()
        row = self.rows(kind="evaluate")[-1]
        self.assertIsNone(row["recall_of"][3])
        self.assertAlmostEqual(row["recall"], sum(row["recall_of"][:3]) / 3, delta=1e-12)

    def test_planned(self):
        result = harness.run(
            "check", "deck.toml", "--assume", "fields:960,4x4x1,classes:4", cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("images of 4 x 4 x 1 (float32), 4 classes", result.stdout)
        result = harness.run("plan", "deck.toml", "--prove", "--ranks", "2", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        wrong = harness.run("check", "deck.toml", "--assume", "fields:9,4x4x1,4", cwd=self.folder)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn('write fields:COUNT,HxWxC,classes:N', wrong.text)

    def test_what_is_refused(self):
        x, y = self.sets["train"]
        for name, value, words in (
            ("last", 2, "/last: sample 5 has 2 for a class (number 0 of 1)"),
            ("last", 0.5, "sample 5 has 0.5 for a class"),
            ("last", np.nan, "sample 5 has a target that is missing"),
        ):
            self.write("train", x, y)
            with h5py.File(self.path("train.h5"), "a") as file:
                file[name][5] = value
            self.assertIn(words, self.train(expect=2).text)
        for change, words in (
            (
                "loss.kind=mse",
                '"mse" is a loss for target.kind = "values" and target.kind = "field"',
            ),
            ("loss.kind=mse", 'use "binary-cross-entropy"'),
            ("checkpoint.best=top1", "use \"loss\", \"f1\", \"precision\" or \"recall\""),
            ("loss.label_smoothing=0.1", "loss.label_smoothing"),
            ("target.normalize={ mean = [0], std = [1] }", "target.normalize"),
        ):
            self.assertIn(words, self.train("--set", change, expect=2).text)


if __name__ == "__main__":
    unittest.main()
