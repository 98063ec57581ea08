# SPDX-License-Identifier: Apache-2.0
"""Tests targets that are values: losses, gradients and metrics against a twin in float64, layouts,
restarts, evaluations and predictions.

The twin is a network of two hidden layers, trained by SGD with momentum. It follows PyTorch's
MSELoss, L1Loss and HuberLoss (mean); where PyTorch is there, its losses are compared with the
twin's, too.
"""

import json
import os
import re
import signal
import subprocess
import sys
import unittest

import harness

try:
    import h5py
    import numpy as np
    from mlp_twin import MlpTwin, initial_weights
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLES, EVALUATED, SIDE, VALUES, WIDTH = 96, 23, 4, 3, 16
STEPS, GLOBAL, MICRO, RATE, MOMENTUM, DELTA = 20, 12, 2, 0.05, 0.9, 0.5
MEAN, STD = (300.0, -2.0, 0.0), (20.0, 0.5, 1.0)
DECK = """
[run]
name = "values"
folder = "run"
stop = "%d steps"
[model]
kind = "mlp"
widths = [%d, %d]
[data]
train = "train.h5"
validation = "validation.h5"
shuffle = "none"
[data.hdf5]
input = "x"
target = ["first", "rest"]
layout = "hw"
[target]
kind = "values"
normalize = { mean = %s, std = %s }
[loss]
kind = "mse"
[batch]
global = %d
micro = %d
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
best = "r2"
[monitor]
every = "1 step"
tensorboard = false
""" % (STEPS, WIDTH, WIDTH, list(MEAN), list(STD), GLOBAL, MICRO, MOMENTUM, RATE)


def make(samples, seed):
    """Returns fields [n, 4, 4] and the values that follow from them, in units of the data."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, SIDE, SIDE))
    y = np.stack([x.mean((1, 2)), x[:, 0].sum(1), np.tanh(x[:, 1, 1])], 1)
    return x.astype(np.float32), y * STD + MEAN


def normalized(y):
    return (y - MEAN) / np.array(STD)


class Values(harness.Case):
    def setUp(self):
        super().setUp()
        self.sets = {"train": make(SAMPLES, 1), "validation": make(EVALUATED, 2)}
        for name, (x, y) in self.sets.items():
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"] = x
                file["first"] = y[:, 0].astype(">f8")
                # Packed: value = stored / 65536 - 2.
                file["rest"] = np.round((y[:, 1:] + 2) * 65536).astype("i4")
                file["rest"].attrs["scale_factor"] = 1 / 65536
                file["rest"].attrs["add_offset"] = -2.0
                y[:, 1:] = file["rest"][:] / 65536 - 2
        self.write_deck(DECK)

    def rows(self, folder="run", kind="train"):
        return harness.read_rows(self.path(folder), kind)

    def losses(self, *words, ranks=1, folder="run"):
        self.train("--set", "run.folder=" + folder, *words, ranks=ranks)
        return [row["loss"] for row in self.rows(folder)]

    def test_losses_of_a_twin(self):
        x, y = self.sets["train"]
        x, y = x.reshape(SAMPLES, -1).astype(np.float64), normalized(y)
        weights = initial_weights(self)
        layouts = (
            ((), 1),
            (("--set", "batch.micro=12"), 1),
            ((), 2),
            ((), 3),
            (("--set", "parallel.pipeline=2"), 2),
        )
        for kind in ("mse", "l1", "huber"):
            twin, expected = MlpTwin(weights, RATE, MOMENTUM, DELTA), []
            for step in range(STEPS):
                at = np.arange(step * GLOBAL, (step + 1) * GLOBAL) % SAMPLES
                expected.append(twin.step(kind, x[at], y[at]))
            self.compare_with_pytorch(kind, weights, x, y, expected)
            more = ("--set", "loss.delta=%s" % DELTA) if kind == "huber" else ()
            for i, (words, ranks) in enumerate(layouts):
                with self.subTest(kind, layout=words, ranks=ranks):
                    folder = "%s_%d" % (kind, i)
                    found = self.losses(
                        "--set", "loss.kind=" + kind, *more, *words, ranks=ranks, folder=folder
                    )
                    self.assertEqual(len(found), STEPS)
                    for a, b in zip(found, expected):
                        self.assertAlmostEqual(a, b, delta=2e-4 * max(1, b))
                    self.check_metrics(folder, twin)

    def compare_with_pytorch(self, kind, weights, x, y, expected):
        try:
            import torch
        except ImportError:
            return
        loss = {"mse": torch.nn.MSELoss(), "l1": torch.nn.L1Loss()}.get(
            kind, torch.nn.HuberLoss(delta=DELTA)
        )
        twin, batches = MlpTwin(weights, RATE, MOMENTUM, DELTA), [
            np.arange(step * GLOBAL, (step + 1) * GLOBAL) % SAMPLES for step in range(STEPS)
        ]
        for at, value in zip(batches, expected, strict=True):
            self.assertAlmostEqual(twin.step_of_pytorch(loss, x[at], y[at]), value, delta=1e-9)

    def check_metrics(self, folder, twin):
        """The last evaluation, of a set that no number of ranks divides."""
        x, y = self.sets["validation"]
        out = twin.forward(x.reshape(EVALUATED, -1).astype(np.float64))[1] * STD + MEAN
        squared, deviations = ((out - y) ** 2).mean(0), y.var(0)
        row = self.rows(folder, "evaluate")[-1]
        self.assertEqual(row["samples"], EVALUATED)
        for key, expected in (
            ("rmse_of", np.sqrt(squared)),
            ("mae_of", abs(out - y).mean(0)),
            ("r2_of", 1 - squared / deviations),
        ):
            for a, b in zip(row[key], expected, strict=True):
                self.assertAlmostEqual(a, b, delta=2e-4 * max(1, b))
        self.assertAlmostEqual(row["rmse"], np.sqrt(squared.mean()), delta=1e-3)
        self.assertAlmostEqual(row["r2"], (1 - squared / deviations).mean(), delta=1e-4)
        self.assertNotIn("top1", row)

    def test_the_same_bits_at_every_layout_and_after_a_kill(self):
        words = ("--set", "run.deterministic=true", "--set", "batch.global=16")
        digests = {}
        for ranks in (1, 2, 4, 8):
            folder = "run_%d" % ranks
            self.train("--set", "run.folder=" + folder, *words, ranks=ranks)
            digests[ranks] = self.digest(folder)
        process, _, held = self.start_held(*words, "--set", "run.folder=killed", step=13)
        os.kill(held, signal.SIGKILL)
        process.communicate()
        self.train(*words, "--set", "run.folder=killed", ranks=2)
        digests["killed"] = self.digest("killed")
        self.assertEqual(len(set(digests.values())), 1, digests)
        rows = {r: self.rows("run_%d" % r, "evaluate")[-1] for r in (1, 2, 4, 8)}
        for row in rows.values():
            for key in ("loss", "rmse", "mae", "r2"):
                self.assertAlmostEqual(row[key], rows[1][key], delta=1e-9 * abs(rows[1][key]))

    def digest(self, folder):
        path = self.path(folder, "checkpoints/step_%09d.h5" % STEPS)
        return harness.run("inspect", path, "--digest").stdout.split()[-1]

    def test_evaluate(self):
        self.train()
        best = self.path("run/checkpoints/best.h5")
        self.assertTrue(os.path.exists(best))
        words = ("evaluate", "run/deck.toml", "--checkpoint", best)
        results = []
        for ranks in (1, 3):
            name = "predictions_%d.h5" % ranks
            result = harness.run(
                *words, "--json", "--predictions", name, cwd=self.folder, ranks=ranks
            )
            self.assertEqual(result.returncode, 0, result.text)
            results.append(json.loads(result.stdout))
            with h5py.File(self.path(name)) as file:
                self.assertTrue((file["index"][:] == np.arange(EVALUATED)).all())
                target, value = file["target"][:], file["value"][:]
            y = self.sets["validation"][1]
            self.assertTrue((abs(target - y) <= 1e-5 * abs(y) + 1e-5).all())
            rmse = np.sqrt(((value - target) ** 2).mean(0))
            for found, expected in zip(results[-1]["values"], rmse, strict=True):
                self.assertAlmostEqual(found["rmse"], expected, delta=1e-6 * expected)
        for key in ("loss", "rmse", "mae", "r2"):
            self.assertAlmostEqual(results[0][key], results[1][key], delta=1e-9)
        turned = ("--set", 'data.hdf5.target=["rest", "first"]')
        text = harness.run(*words, *turned, cwd=self.folder).text
        self.assertIn('trained with data.hdf5.target: ["/first", "/rest"], but the deck has', text)
        text = harness.run(*words, cwd=self.folder).stdout
        self.assertEqual(text.count("value "), VALUES)
        self.assertIn("R2", text.splitlines()[-1])
        for option in (("--confusion", "a.csv"), ("--worst", "a.svg"), ("--top", "2"), ("--flip",)):
            result = harness.run(*words, *option, cwd=self.folder)
            self.assertEqual(result.returncode, 2)
            self.assertIn('target.kind is "values"', result.text)
        result = harness.run("predict", best, "x.png", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("answers values", result.text)

    def test_report(self):
        """It draws predictions in the folder of the run, and files of others do it no harm."""
        self.train()
        words = ("--checkpoint", "run/checkpoints/best.h5", "--predictions", "run/a.h5")
        result = harness.run("evaluate", "run/deck.toml", *words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)

        def write(name, **arrays):
            with h5py.File(self.path("run", name), "w") as file:
                file.attrs["format"] = "trireme-predictions"
                for key, array in arrays.items():
                    file[key] = array

        target = np.arange(50 * 8 * 9 * 2, dtype="f4").reshape(50, 8, 9, 2)
        value = target + 0.5
        target[::2, 3] = np.nan
        write("b.h5", target=target, value=value)
        write("c.h5", predicted=np.zeros(5, "i4"))
        write("d.h5", target=np.zeros((5, 2)), value=np.zeros((5, 3)))
        with open(self.path("run/e.h5"), "wb") as file:
            file.write(b"\x89HDF\r\n\x1a\n" + bytes(100))
        result = harness.run("report", "run", "--json", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        (run,) = json.loads(result.stdout)["runs"]
        self.assertEqual([found["file"] for found in run["compared"]], ["a.h5", "b.h5"])
        values, field = run["compared"]
        self.assertEqual((values["split"], values["parts"]), ("validation", VALUES))
        with h5py.File(self.path("run/a.h5")) as file:
            for name in ("target", "value"):
                found = np.array([part[name] for part in values["shown"]]).T
                np.testing.assert_allclose(found, file[name][:], rtol=1e-12)
        self.assertEqual((field["parts"], field["numbers"]), (2, 50 * 8 * 9))
        pairs = np.array([[part["target"], part["value"]] for part in field["shown"]])
        self.assertTrue((pairs[:, 1] == pairs[:, 0] + 0.5).all())
        # Spread over samples, lines and columns; a sixteenth is missing.
        sample, line, column = np.unravel_index(pairs[0, 0].astype(int) // 2, (50, 8, 9))
        self.assertAlmostEqual(len(sample) / 1000, 15 / 16, delta=0.02)
        for places in (sample, line, column):
            counts = np.unique(places, return_counts=True)[1]
            self.assertLess(counts.max(), 2.5 * counts.min())
        troubles = " ".join(run["troubles"])
        self.assertIn("d.h5: /value and /target are not two arrays", troubles)
        self.assertIn("e.h5", troubles)
        result = harness.run("report", "run", "--out", "run.html", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        with open(self.path("run.html")) as file:
            page = file.read()
        self.assertIn("<h2>True against predicted</h2>", page)
        self.assertEqual(page.count('class="cloud r0"'), VALUES + 2)
        self.assertIn("<b>value 2</b>", page)

    def test_predict_files_without_targets(self):
        """Answers are those of evaluate --predictions, and files are taken in their order."""
        self.train()
        best, x = self.path("run/checkpoints/best.h5"), self.sets["validation"][0]
        words = ("run/deck.toml", "--checkpoint", best, "--predictions", "known.h5")
        self.assertEqual(harness.run("evaluate", *words, cwd=self.folder).returncode, 0)
        os.mkdir(self.path("new"))
        for name, part in (("b.h5", x[4:7]), ("a.nc", x[:4]), ("c.hdf5", x[7:])):
            with h5py.File(self.path("new", name), "w") as file:
                file["x"] = part.astype(">f8")
        os.rename(self.path("train.h5"), self.path("train_is_elsewhere.h5"))
        result = harness.run("predict", best, "new", "--out", "new.h5", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertEqual(result.stdout, "new.h5: 23 samples of 3 files\n")
        with h5py.File(self.path("known.h5")) as known, h5py.File(self.path("new.h5")) as new:
            for name in ("index", "value"):
                self.assertTrue((known[name][:] == new[name][:]).all(), name)
            self.assertNotIn("target", new)
            self.assertEqual(
                [os.path.basename(path.decode()) for path in new["files"][:]],
                ["a.nc", "b.h5", "c.hdf5"],
            )
            self.assertEqual(list(new["file"][:]), [0] * 4 + [1] * 3 + [2] * 16)
            self.assertEqual(list(new["row"][:]), [*range(4), *range(3), *range(16)])
            for name in ("checkpoint_digest", "deck"):
                self.assertEqual(known.attrs[name], new.attrs[name])
        again = ("predict", best, "new/a.nc", "new/b*.h5", "--out", "new.h5")
        self.assertIn("exists", self.refused(*again))
        result = harness.run(*again, "--overwrite", cwd=self.folder)
        self.assertEqual(result.stdout, "new.h5: 7 samples of 2 files\n")
        with h5py.File(self.path("new/a.nc"), "a") as file:
            file["x"][2, 1, 1] = np.nan
            file["narrow"] = x[:, :3]
            file["short"] = x.astype("u1")
        self.assertIn("sample 2 has a value that is missing", self.refused(*again, "--overwrite"))
        with h5py.File(self.path("narrow.h5"), "w") as file:
            file["x"] = x[:, :3]
        with h5py.File(self.path("bytes.h5"), "w") as file:
            file["x"] = np.zeros((3, SIDE, SIDE), "u1")
        with h5py.File(self.path("other.h5"), "w") as file:
            file["z"] = x
        for words, message in (
            (("narrow.h5", "--out", "o.h5"), "samples of 3 x 4 x 1 (height, width, channels), but"),
            (("bytes.h5", "--out", "o.h5"), "has inputs of uint8, but the model"),
            (("other.h5", "--out", "o.h5"), 'data.hdf5.input = "x": the file has no such dataset'),
            (("missing.h5", "--out", "o.h5"), "missing.h5"),
            (("new/b.h5",), "name a file for what the model answers: --out FILE.h5"),
            (("new/b.h5", "--out", "new/b.h5", "--overwrite"), "is the input new/b.h5"),
            (("new/b.h5", "--out", "o.h5", "--json"), "--json is about images"),
            (("new/b.h5", "--out", "o.h5", "--flip"), '--flip: needs one class for each sample'),
            (("x.png", "--overwrite"), "add --out FILE.h5"),
        ):
            self.assertIn(message, self.refused("predict", best, *words), words)
        self.assertFalse(os.path.exists(self.path("o.h5")))

    def refused(self, *words):
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        return result.text

    def test_the_example(self):
        """inputs/examples/fields.toml, for two of its six epochs."""
        script = os.path.join(ROOT, "scripts/make_fields.py")
        subprocess.run([sys.executable, script, self.path("data/fields")], check=True)
        deck = os.path.join(ROOT, "inputs/examples/fields.toml")
        self.train("--set", "run.stop=2 epochs", deck=deck, threads=2)
        row = self.rows("runs/fields", "evaluate")[-1]
        self.assertEqual((row["split"], row["samples"]), ("test", 1000))
        self.assertGreater(min(row["r2_of"]), 0.94)

    def test_statistics(self):
        """Means and deviations are those of the data, whatever normalize says, and fit the deck."""
        x, y = self.sets["train"]
        words = ("check", "deck.toml", "--statistics")
        found = json.loads(harness.run(*words, "--json", cwd=self.folder).stdout)["statistics"]
        self.assertEqual(found["samples"], SAMPLES)
        for key, expected in (
            ("mean", [x.astype(float).mean()]),
            ("std", [x.astype(float).std()]),
            ("target_mean", y.mean(0)),
            ("target_std", y.std(0)),
        ):
            for a, b in zip(found[key], expected, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-5 * max(1, abs(b)))
        text = harness.run(*words, cwd=self.folder).stdout
        tables = re.findall(r"\[([a-z.]+)\]\n(normalize) = (.*)\n", text)
        self.assertEqual([table for table, _, _ in tables], ["data.augment", "target"])
        for table, key, value in tables:
            self.train("--set", "%s.%s=%s" % (table, key, value), "--set", "run.folder=" + table)
        # A large mean takes no digits.
        with h5py.File(self.path("train.h5"), "a") as file:
            file["first"][:] = y[:, 0] = 1e9 + np.random.default_rng(5).normal(size=SAMPLES)
        for change in ((), ("--unset", "target.normalize")):
            result = harness.run(*words, "--json", *change, cwd=self.folder)
            found = json.loads(result.stdout)["statistics"]
            self.assertAlmostEqual(found["target_std"][0], y[:, 0].std(), delta=1e-5)
            self.assertAlmostEqual(found["target_mean"][0], y[:, 0].mean(), delta=1e-5)
        words += ("--assume", "fields:960,4x4x1,values:3")
        self.assertIn("leave one of them out", self.refused(*words))

    def test_notes_on_scale(self):
        """check says which numbers the model gets far from 0 and 1."""

        def notes(*settings):
            words = [word for setting in settings for word in ("--set", setting)]
            result = harness.run("check", "deck.toml", "--json", *words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            return [note for note in json.loads(result.stdout)["notes"] if "far from 0" in note]

        self.assertEqual(notes(), [])
        (note,) = notes("target.normalize={ mean = [0.0], std = [0.001] }")
        self.assertRegex(
            note, r"value \d has mean .*after target.normalize, far from 0 and 1; change target"
        )
        for name in self.sets:
            with h5py.File(self.path(name + ".h5"), "a") as file:
                file["kelvin"] = 288 + 15 * file["x"][:]
        (note,) = notes("data.hdf5.input=kelvin")
        self.assertRegex(note, r"channel 0 \(kelvin\) has mean 28\d.* and standard deviation 1")
        for name in self.sets:
            with h5py.File(self.path(name + ".h5"), "a") as file:
                hours = file["x"][:]
                hours[1::2] += 288
                file["hours"] = hours
        (note,) = notes("data.hdf5.input=hours")
        self.assertRegex(
            note, r"channel 0 \(hours\) has mean [12]\d\d.* and standard deviation 1[34]"
        )
        self.assertEqual(
            notes("data.hdf5.input=kelvin", "data.augment.normalize={ mean = [288], std = [15] }"),
            [],
        )

    def test_mixup(self):
        """Mixed targets are those of mixed fields: the network still learns."""
        self.train("--set", "data.augment.mixup=0.4", "--set", "batch.micro=4")
        losses = [row["loss"] for row in self.rows()]
        self.assertLess(sum(losses[-4:]), 0.7 * sum(losses[:4]))

    def test_a_file_without_samples(self):
        """Its extents have no bytes, so nothing else limits them."""
        with h5py.File(self.path("train.h5"), "w") as file:
            file["x"] = np.zeros((0, SIDE, SIDE))
            file.create_dataset("first", shape=(0,) + (1 << 20,) * 4, dtype="f4")
            file["rest"] = np.zeros((0, 2))
        result = self.train(expect=2)
        self.assertIn("/first: has the extents [0, 1048576, ", result.text)
        with h5py.File(self.path("train.h5"), "a") as file:
            del file["first"]
            file["first"] = np.zeros(0)
        self.assertIn("its 1 file has no sample", self.train(expect=2).text)

    def test_targets_that_are_all_equal_have_no_r2(self):
        for name in ("train", "validation"):
            with h5py.File(self.path(name + ".h5"), "a") as file:
                file["first"][:] = 307.1234567
        for ranks in (1, 3):
            folder = "run_%d" % ranks
            self.train("--set", "run.folder=" + folder, ranks=ranks)
            row = self.rows(folder, "evaluate")[-1]
            self.assertIsNone(row["r2_of"][0])
            self.assertAlmostEqual(row["r2"], sum(row["r2_of"][1:]) / 2, delta=1e-12)
            self.assertTrue(os.path.exists(self.path(folder, "checkpoints/best.h5")))

    def test_another_meaning_of_the_outputs_is_refused(self):
        self.train()
        best = self.path("run/checkpoints/best.h5")
        words = ("evaluate", "run/deck.toml", "--checkpoint", best, "--set")
        result = harness.run(*words, "target.normalize={ mean = [0], std = [1] }", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("its model was trained with target.normalize", result.text)
        for change in (
            "loss.kind=l1",
            "target.normalize={ mean = [0], std = [1] }",
            'data.hdf5.layout="wh"',
        ):
            result = self.train("--set", change, "--set", "run.stop=24 steps", expect=2)
            self.assertIn(change.split("=")[0], result.text)

    def test_wrong_targets(self):
        x, y = self.sets["train"]
        cases = (
            ({"first": y[:, 0].astype("f4")}, np.nan, "sample 5 has a target that is missing"),
            ({"first": y[:, 0].astype("f4")}, np.inf, "sample 5 has a target that is missing"),
            ({"first": y[1:, 0]}, None, "values are [samples ...], for each of the 96 samples"),
            ({"first": np.array([b"x"] * SAMPLES)}, None, "holds text"),
            ({"first": y[:, :2]}, None, "target.normalize has 3 numbers, but the target"),
            ({"first": np.zeros((SAMPLES, 0))}, None, "a sample can have 1 to 1048576 numbers"),
        )
        for changed, value, words in cases:
            with self.subTest(words):
                if value is not None:
                    changed["first"][5] = value
                with h5py.File(self.path("train.h5"), "w") as file:
                    for name, data in ({"x": x, "rest": y[:, 1:]} | changed).items():
                        file[name] = data
                result = self.train(
                    "--set",
                    "data.validation=",
                    "--unset",
                    "checkpoint.best",
                    "--unset",
                    "evaluate.every",
                    expect=2,
                )
                self.assertIn(words, result.text)


if __name__ == "__main__":
    unittest.main()
