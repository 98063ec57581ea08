# SPDX-License-Identifier: Apache-2.0
"""Tests predictions of models that answer for each pixel: `evaluate --predictions` at several
layouts, `predict --out` with several files, units of the data, and what is refused.
"""

import json
import os
import resource
import subprocess
import unittest

import harness

try:
    import h5py
    import numpy as np
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, EVALUATED, HEIGHT, WIDTH, CLASSES = 24, 21, 6, 8, 4
MEAN, STD = (300.0, -0.25), (20.0, 0.125)
DECK = """
[run]
name = "maps"
folder = "run"
stop = "2 steps"
[model]
kind = "chain"
blocks = [
  { kind = "conv", channels = 6, kernel = 3, padding_mode = "periodic" },
  { kind = "activation", activation = "relu" },
  { kind = "conv", channels = 6, kernel = 3 },
  { kind = "activation", activation = "relu" },
  { kind = "conv", channels = %d, kernel = 1 },
]
[data]
train = "train.h5"
validation = "validation.h5"
[data.hdf5]
input = "x"
target = %s
layout = "chw"
target_layout = "%s"
[target]
%s
[batch]
global = 12
micro = 4
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.1
[checkpoint]
best = "%s"
[monitor]
every = "1 step"
tensorboard = false
"""
NORMALIZE = "normalize = { mean = %s, std = %s }"
PIXELS = DECK % (CLASSES, '"class"', "hw", 'kind = "pixels"\nclasses = 4\nignore = 255', "iou")
FIELD = DECK % (
    2,
    '["speed", "rest"]',
    "chw",
    'kind = "field"\n' + NORMALIZE % (list(MEAN), list(STD)),
    "loss",
)
ONE = DECK % (1, '"rest"', "chw", 'kind = "field"\n' + NORMALIZE % ([MEAN[1]], [STD[1]]), "loss")
CHECKPOINT = "run/checkpoints/step_000000002.h5"


def make(samples, seed):
    """Returns inputs [n, 2, h, w], a class for each pixel, and two numbers [n, 2, h, w]."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(samples, 2, HEIGHT, WIDTH)).astype(np.float32)
    classes = np.digitize(x[:, 0], [-1, 0, 1]).astype(np.uint8)
    classes[draws.random(classes.shape) < 0.1] = 255
    field = np.stack([MEAN[i] + STD[i] * np.roll(x[:, i], 1, 2) for i in range(2)], 1)
    field[draws.random(field.shape) < 0.1] = np.nan
    return x, classes, field.astype(np.float32)


class MapPredictions(harness.Case):
    def setUp(self):
        super().setUp()
        self.sets = {"train": make(SAMPLES, 1), "validation": make(EVALUATED, 2)}
        for name, (x, classes, field) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"], file["class"] = x, classes
                file["speed"], file["rest"] = field[:, :1], field[:, 1:]

    def run_of(self, deck):
        self.write_deck(deck)
        self.train()

    def succeeds(self, *words, ranks=1):
        result = harness.run(*words, cwd=self.folder, ranks=ranks)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def refused(self, *words):
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        return result.text

    def evaluated(self, *words, ranks=1):
        """Returns the JSON object and the datasets of `evaluate --predictions`."""
        words = ("deck.toml", "--checkpoint", CHECKPOINT, "--json", *words)
        name = "known_%d.h5" % ranks
        text = self.succeeds("evaluate", *words, "--predictions", name, "--overwrite", ranks=ranks)
        with h5py.File(self.path(name)) as file:
            return json.loads(text), {key: file[key][()] for key in file}

    def test_answers_that_are_written_in_parts(self):
        """A rank keeps 64 MiB of answers: more are written while samples are evaluated."""
        side, samples, parts = 256, 360, {}
        self.run_of(FIELD)
        draws = np.random.default_rng(4)
        with h5py.File(self.path("validation.h5"), "w") as file:
            file["x"] = draws.normal(size=(samples, 2, side, side)).astype("f4")
            for name in ("speed", "rest"):
                file[name] = draws.normal(size=(samples, 1, side, side)).astype("f4")
        more = ("--set", "data.train=validation.h5", "--set", "batch.micro=1", "--set")
        for at, ranks, words in (("one", 1, ""), ("two", 2, ""), ("pipeline", 2, "pipeline=2")):
            words = (*more, "parallel." + (words or "tensor=1"))
            self.evaluated(*words, ranks=ranks)
            parts[at] = "parts_%s.h5" % at
            os.rename(self.path("known_%d.h5" % ranks), self.path(parts[at]))
        with h5py.File(self.path("validation.h5")) as file:
            targets = np.concatenate([file["speed"][:], file["rest"][:]], 1)
        with h5py.File(self.path(parts["one"])) as file:
            np.testing.assert_array_equal(np.moveaxis(file["target"][:], -1, 1), targets)
            values = file["value"][:]
            self.assertTrue((file["index"][:] == np.arange(samples)).all())
        # 360 answers and targets are 360 MiB.
        words = ("deck.toml", "--checkpoint", CHECKPOINT, *more[:-1], "--predictions", "again.h5")
        process = subprocess.Popen(
            (harness.TRIREME, "evaluate", *words),
            cwd=self.folder,
            env=harness.environment(),
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        self.assertEqual(status, 0)
        self.assertLess(used.ru_maxrss, 250 << 10)
        text = self.succeeds("inspect", "again.h5")
        self.assertIn("again.h5: predictions of %s for the split validation" % CHECKPOINT, text)
        self.assertIn("  /value: float32 [360, 256, 256, 2], contiguous", text)
        described = json.loads(self.succeeds("inspect", "again.h5", "--json"))
        self.assertEqual((described["kind"], described["split"]), ("predictions", "validation"))
        # A few samples as a small file, which is written at once, has them.
        with h5py.File(self.path("validation.h5")) as file, h5py.File(
            self.path("few.h5"), "w"
        ) as few:
            for name in file:
                few[name] = file[name][340:350]
        few = self.evaluated(*more, "data.validation=few.h5")[1]
        np.testing.assert_array_equal(few["value"], values[340:350])
        for at in ("two", "pipeline"):
            with h5py.File(self.path(parts[at])) as file:
                np.testing.assert_array_equal(file["value"][:], values)

    def predicted(self):
        """Returns the datasets of `predict --out` for the same inputs in three files, which have no
        targets."""
        x = self.sets["validation"][0]
        for name, part in (("a", x[:2]), ("b", x[2:19]), ("c", x[19:])):
            with h5py.File(self.path("new_%s.h5" % name), "w") as file:
                file["x"] = part
        words = (CHECKPOINT, "new_a.h5", "new_[bc].h5", "--out", "answers.h5", "--overwrite")
        self.assertEqual(
            self.succeeds("predict", *words), "answers.h5: 21 samples of 3 files\n", "counts"
        )
        with h5py.File(self.path("answers.h5")) as file:
            return {key: file[key][()] for key in file}

    def test_classes_of_pixels(self):
        self.run_of(PIXELS)
        found, known = self.evaluated()
        self.assertEqual(set(known), {"index", "label", "predicted"})
        for name in ("label", "predicted"):
            self.assertEqual(known[name].dtype, np.int32)
            self.assertEqual(known[name].shape, (EVALUATED, HEIGHT, WIDTH))
        wanted = self.sets["validation"][1].astype(int)
        wanted[wanted == 255] = -1
        self.assertTrue((known["label"] == wanted).all())
        counted = wanted >= 0
        right = (known["predicted"] == wanted)[counted]
        self.assertAlmostEqual(found["accuracy"], right.mean(), delta=1e-12)
        for label in range(CLASSES):
            one, other = (known[name][counted] == label for name in ("label", "predicted"))
            if (one | other).any():
                iou = (one & other).sum() / (one | other).sum()
                self.assertAlmostEqual(found["classes"][label]["iou"], iou, delta=1e-12)
        new = self.predicted()
        self.assertEqual(set(new), {"index", "file", "row", "files", "predicted"})
        self.assertTrue((new["predicted"] == known["predicted"]).all())
        self.assertEqual(list(new["file"]), [0] * 2 + [1] * 17 + [2] * 2)
        for ranks in (2, 3):
            other = self.evaluated(ranks=ranks)[1]
            for name, values in known.items():
                self.assertTrue((other[name] == values).all(), name)

    def test_fields_in_units_of_the_data(self):
        self.run_of(FIELD)
        found, known = self.evaluated()
        self.assertEqual(set(known), {"index", "target", "value"})
        for name in ("target", "value"):
            self.assertEqual(known[name].dtype, np.float32)
            self.assertEqual(known[name].shape, (EVALUATED, HEIGHT, WIDTH, 2))
        wanted = np.moveaxis(self.sets["validation"][2], 1, 3)
        self.assertTrue((np.isnan(known["target"]) == np.isnan(wanted)).all())
        np.testing.assert_allclose(known["target"], wanted, rtol=1e-6, atol=1e-6)
        error = known["value"].astype(float) - wanted
        rmse = np.sqrt(np.nanmean(error**2, (0, 1, 2)))
        for i, one in enumerate(found["components"]):
            self.assertAlmostEqual(one["rmse"], rmse[i], delta=1e-5 * rmse[i])
        # A model that has learned nothing answers values near the mean.
        self.assertLess(abs(known["value"].mean((0, 1, 2)) - MEAN).max(), 3 * max(STD))
        new = self.predicted()
        self.assertEqual(set(new), {"index", "file", "row", "files", "value"})
        np.testing.assert_allclose(new["value"], known["value"], rtol=1e-6, atol=1e-6)
        for ranks, words in ((2, ()), (3, ()), (2, ("--set", "parallel.pipeline=2"))):
            other = self.evaluated(*words, ranks=ranks)[1]
            np.testing.assert_array_equal(other["target"], known["target"])
            np.testing.assert_allclose(other["value"], known["value"], rtol=1e-6, atol=1e-6)

    def test_a_field_of_one_component_has_no_dimension_for_it(self):
        self.run_of(ONE)
        known = self.evaluated()[1]
        wanted = self.sets["validation"][2][:, 1]
        np.testing.assert_allclose(known["target"], wanted, rtol=1e-6, atol=1e-6)
        new = self.predicted()["value"]
        self.assertEqual(new.shape, (EVALUATED, HEIGHT, WIDTH))
        np.testing.assert_allclose(new, known["value"], rtol=1e-6, atol=1e-6)

    def test_answers_that_are_written_in_parts(self):
        """Those of predict are not kept in memory; here they have 84 MB."""
        side, samples = 1024, 20
        rows = np.random.default_rng(5).normal(size=(samples, side)).astype(np.float32)
        for name, part in (("train", rows[:2]), ("validation", rows[:2]), ("new", rows)):
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"] = np.repeat(part[:, None, :, None], side, 3)  # one channel
                if name != "new":
                    file["rest"] = 2 * file["x"][:]
        one_block = 'blocks = [{ kind = "conv", channels = 1, kernel = 1 }]\n'
        start, end = ONE.index("blocks = ["), ONE.index("[data]")
        deck = ONE[:start] + one_block + ONE[end:]
        self.run_of(deck.replace("global = 12\nmicro = 4", "global = 2\nmicro = 1"))
        self.succeeds("predict", CHECKPOINT, "new.h5", "--out", "answers.h5")
        with h5py.File(self.path(CHECKPOINT)) as file:
            weight, bias = (
                file["model"]["blocks.0." + name][()].item() for name in ("weight", "bias")
            )
        with h5py.File(self.path("answers.h5")) as file:
            value = file["value"][:]
            self.assertEqual(list(file["row"]), list(range(samples)))
        expected = (rows * weight + bias) * STD[1] + MEAN[1]
        np.testing.assert_allclose(value[:, :, 7], expected, rtol=1e-5, atol=1e-5)
        self.assertTrue((value == value[:, :, :1]).all())

    def test_a_file_that_cannot_grow(self):
        """Ends with 1 and leaves nothing, nor a crash when HDF5 is closed."""
        self.run_of(ONE)
        with h5py.File(self.path("many.h5"), "w") as file:
            file["x"] = np.zeros((2000, 2, HEIGHT, WIDTH), np.float32)
        words = (harness.TRIREME, "predict", CHECKPOINT, "many.h5", "--out", "answers.h5")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        result = subprocess.run(
            words, cwd=self.folder, preexec_fn=limit, capture_output=True, text=True
        )
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertEqual([name for name in os.listdir(self.folder) if "answers" in name], [])

    def test_a_map_that_is_smaller_than_its_input(self):
        for split, (_, classes, _) in self.sets.items():
            with h5py.File(self.path(split + ".h5"), "a") as file:
                del file["class"]
                file["class"] = classes[:, ::2, ::2]
        self.run_of(
            PIXELS.replace('kernel = 3, padding_mode = "periodic"', "kernel = 3, stride = 2")
        )
        known, new = self.evaluated()[1], self.predicted()
        self.assertEqual(known["label"].shape, (EVALUATED, HEIGHT // 2, WIDTH // 2))
        self.assertTrue((new["predicted"] == known["predicted"]).all())

    def test_what_is_refused(self):
        self.run_of(PIXELS)
        evaluate = ("evaluate", "deck.toml", "--checkpoint", CHECKPOINT, "--predictions", "a.h5")
        predict = ("predict", CHECKPOINT, "validation.h5", "--out", "a.h5")
        for words in (evaluate, predict):
            for option in (("--top", "2"), ("--flip",)):
                text = self.refused(*words, *option)
                self.assertIn(
                    option[0] + ": needs one class for each sample, but target.kind is", text
                )
        self.assertIn("answers classes of pixels", self.refused("predict", CHECKPOINT, "x.png"))
        with h5py.File(self.path("wide.h5"), "w") as file:
            file["x"] = np.zeros((2, 2, HEIGHT, WIDTH + 2), np.float32)
        text = self.refused("predict", CHECKPOINT, "wide.h5", "--out", "a.h5")
        self.assertIn("has samples of 6 x 10 x 2", text)


if __name__ == "__main__":
    unittest.main()
