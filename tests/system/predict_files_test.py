# SPDX-License-Identifier: Apache-2.0
"""Tests `predict --out`: answers for samples of HDF5 files are those of an evaluation, whatever the
places and files they are in; types, outputs and checkpoints that do not fit are refused.
"""

import os
import unittest

import harness

try:
    import h5py
    import numpy as np
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, EVALUATED, SIDE, CLASSES = 48, 40, 4, 7
DECK = """
[run]
name = "classes"
folder = "run"
stop = "4 steps"
[model]
kind = "mlp"
widths = [16]
[data]
train = "train.h5"
validation = "validation.h5"
[data.hdf5]
input = "x"
target = "y"
layout = "hw"
[batch]
global = 12
micro = 4
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.5
[monitor]
every = "1 step"
tensorboard = false
"""
CHECKPOINT = "run/checkpoints/step_000000004.h5"


CHAIN = """
[model]
kind = "chain"
blocks = [%s]
[data]
"""


class PredictFiles(harness.Case):
    def test_networks_whose_tensors_do_not_tell_the_extents(self):
        """The extents of the input are those of the checkpoint, which need not be square."""
        x = np.random.default_rng(3).normal(size=(SAMPLES, 6, 10, 2)).astype("f4")
        for name in ("train", "validation"):
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"], file["y"] = x, np.arange(SAMPLES) % CLASSES
        model = '[model]\nkind = "mlp"\nwidths = [16]\n[data]\n'
        for blocks in (
            '{ kind = "flatten" }, { kind = "linear", width = 7 }',
            '{ kind = "conv", channels = 3, kernel = 3 }, { kind = "flatten" }, '
            '{ kind = "linear", width = 7 }',
            '{ kind = "residual", body = [{ kind = "conv", channels = 2, kernel = 3 }] }, '
            '{ kind = "pool", pool = "global" }, { kind = "linear", width = 7 }',
        ):
            self.write_deck(DECK.replace(model, CHAIN % blocks).replace('"hw"', '"hwc"'))
            self.train("--restart", "none")
            self.predict("validation.h5", "--out", "out.h5", "--overwrite")
            words = ("--checkpoint", CHECKPOINT, "--predictions", "known.h5", "--overwrite")
            result = harness.run("evaluate", "deck.toml", *words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            with h5py.File(self.path("out.h5")) as new, h5py.File(self.path("known.h5")) as known:
                self.assertTrue((new["predicted"][:] == known["predicted"][:]).all())

    def test_predictions_in_a_folder_of_data_are_refused(self):
        self.train_on(deck=DECK.replace('"validation.h5"', '"sets"'), sets=True)
        words = ("--checkpoint", CHECKPOINT, "--predictions", "sets/p.h5")
        result = harness.run("evaluate", "deck.toml", *words, cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("would be read with sets the next time", result.text)

    def test_imported_weights(self):
        """Such a checkpoint names no inputs: those of the files are taken, if the model fits."""
        self.train_on()
        for words in (
            ("export", CHECKPOINT, "--out", "w.safetensors"),
            ("import", "w.safetensors", "deck.toml", "--out", "imported.h5"),
        ):
            self.assertEqual(harness.run(*words, cwd=self.folder).returncode, 0)
        self.predict("validation.h5", "--out", "trained.h5")
        text = self.predict("validation.h5", "--out", "out.h5", checkpoint="imported.h5")
        self.assertIn("names no inputs, as imported ones; those of the files are float32", text)
        known, found = self.datasets("trained.h5")[0], self.datasets("out.h5")[0]
        self.assertTrue((found["top_probability"] == known["top_probability"]).all())
        self.write("other/x.h5", self.x["validation"][:, :2])
        words = ("other/x.h5", "--out", "no.h5")
        text = self.predict(*words, checkpoint="imported.h5", expect=2)
        self.assertIn("imported.h5", text)
        self.assertIn("layers.0.weight has shape [16, 16]", text)

    def make(self, form=np.float32):
        """Writes the sets with inputs of this type."""
        self.x = {}
        for name, samples, seed in (("train", SAMPLES, 1), ("validation", EVALUATED, 2)):
            draws = np.random.default_rng(seed)
            x = draws.integers(0, 1000, (samples, SIDE, SIDE)).astype(form)
            self.x[name] = x
            with h5py.File(self.path(name + ".h5"), "w") as file:
                file["x"] = x
                file["y"] = np.arange(samples) % CLASSES

    def train_on(self, form=np.float32, deck=DECK, sets=False):
        self.make(form)
        if sets:
            os.mkdir(self.path("sets"))
            os.rename(self.path("validation.h5"), self.path("sets/validation.h5"))
        self.write_deck(deck)
        self.train()

    def write(self, name, x, **storage):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with h5py.File(self.path(name), "w") as file:
            file.create_dataset("x", data=x, **storage)

    def predict(self, *words, expect=0, checkpoint=CHECKPOINT):
        words = ("predict", checkpoint, *words)
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def copy(self, name):
        """Writes model and state of the checkpoint into a file without a seal."""
        with h5py.File(self.path(CHECKPOINT)) as source, h5py.File(self.path(name), "w") as file:
            source.copy("model", file)
            file.create_group("state").attrs.update(source["state"].attrs)
            file.attrs.update(source.attrs)

    def datasets(self, name):
        with h5py.File(self.path(name)) as file:
            return {key: file[key][()] for key in file}, dict(file.attrs)

    def evaluated(self, *words):
        words = ("deck.toml", "--checkpoint", CHECKPOINT, "--predictions", "known.h5", *words)
        result = harness.run("evaluate", *words, "--overwrite", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return self.datasets("known.h5")[0]

    def test_classes_of_samples_in_several_places(self):
        self.train_on()
        x = self.x["validation"]
        self.write("folder/b.nc", x[5:9])
        self.write("folder/a.h5", x[:5].astype(">f8"))
        self.write("more/one.h5", x[9:30], chunks=(3, SIDE, SIDE), compression="gzip")
        self.write("more/two.h5", x[30:])
        places = ("folder", "more/o*.h5", "more/two.h5")
        for words in ((), ("--flip",), ("--top", "3")):
            known = self.evaluated(*words)
            text = self.predict(*places, "--out", "new.h5", "--overwrite", *words)
            self.assertIn("new.h5: 40 samples of 4 files\n", text)
            new, attributes = self.datasets("new.h5")
            self.assertEqual(
                set(new),
                {"index", "file", "row", "files", "classes"}
                | {"predicted", "top_class", "top_probability"},
            )
            for name in ("index", "predicted", "top_class", "classes"):
                self.assertTrue((new[name] == known[name]).all(), name)
            np.testing.assert_allclose(
                new["top_probability"], known["top_probability"], rtol=1e-5, atol=1e-6
            )
            self.assertNotIn("split", attributes)
            self.assertEqual(attributes["flip"], "--flip" in words)
        names = [os.path.basename(path.decode()) for path in new["files"]]
        self.assertEqual(names, ["a.h5", "b.nc", "one.h5", "two.h5"])
        counts = (5, 4, 21, 10)
        self.assertEqual(list(new["file"]), [i for i, n in enumerate(counts) for _ in range(n)])
        self.assertEqual(list(new["row"]), [row for n in counts for row in range(n)])

    def test_types_of_16_bits_are_told_apart(self):
        self.train_on(np.uint16)
        x = self.x["validation"]
        for name, form in (("uint16", "<u2"), ("float16", "<f2"), ("int16", "<i2")):
            self.write("new/%s.h5" % name, x.astype(form))
        self.predict("new/uint16.h5", "--out", "known.h5")
        for name in ("float16", "float32"):
            place = "new/%s.h5" % name.replace("float32", "int16")
            text = self.predict(place, "--out", "o.h5", expect=2)
            self.assertIn("has inputs of %s, but the model of" % name, text)
            self.assertIn("was trained on inputs of uint16", text)
        for places in (("new/uint16.h5", "new/float16.h5"), ("new/uint16.h5", "new/int16.h5")):
            text = self.predict(*places, "--out", "o.h5", expect=2)
            self.assertIn("among images of uint16 (new/uint16.h5)", text)
        self.assertFalse(os.path.exists(self.path("o.h5")))
        # A file of an earlier version names the bits alone.
        self.copy("old.h5")
        with h5py.File(self.path("old.h5"), "a") as file:
            self.assertEqual(file["state"].attrs["pixel_float"], 0)
            del file["state"].attrs["pixel_float"]
        text = self.predict("new/uint16.h5", "--out", "old_answers.h5", checkpoint="old.h5")
        self.assertIn("does not say whether its 16 bits are uint16 or float16", text)
        for name in ("predicted", "top_probability"):
            known, old = (self.datasets(file)[0][name] for file in ("known.h5", "old_answers.h5"))
            self.assertTrue((known == old).all())
        with h5py.File(self.path("old.h5"), "a") as file:
            file["state"].attrs["pixel_float"] = 2
        text = self.predict("new/uint16.h5", "--out", "o.h5", expect=2, checkpoint="old.h5")
        self.assertIn("its state pixel_float is 2 beside pixel_bits 16", text)

    def test_a_file_is_a_sample(self):
        self.make()
        for split, x in self.x.items():
            os.makedirs(self.path(split))
            for number, sample in enumerate(x[:23]):
                with h5py.File(self.path("%s/%02d.h5" % (split, number)), "w") as file:
                    file["x"], file["y"] = sample, number % CLASSES
        deck = DECK.replace('train.h5"', 'train"').replace('validation.h5"', 'validation"')
        self.write_deck(deck.replace('layout = "hw"', 'layout = "hw"\nsamples = "files"'))
        self.train()
        known = self.evaluated()
        text = self.predict("validation", "--out", "new.h5")
        self.assertIn("new.h5: 23 samples of 23 files\n", text)
        new = self.datasets("new.h5")[0]
        self.assertTrue((new["predicted"] == known["predicted"]).all())
        self.assertEqual(list(new["file"]), list(range(23)))
        self.assertEqual(list(new["row"]), [0] * 23)

    def test_an_output_that_would_be_an_input(self):
        self.train_on()
        self.write("new/a.h5", self.x["validation"][:3])
        os.symlink("new", self.path("same"))
        os.symlink("new/a.h5", self.path("link.h5"))
        for place, out, words in (
            ("new", "new/out.h5", "would be read with the input new the next time"),
            ("new/", "same/out.nc", "would be read with the input new/ the next time"),
            ("n*/*.h5", "new/out.h5", "would be read with the input n*/*.h5 the next time"),
            ("*.h5", "out.h5", "would be read with the input *.h5 the next time"),
            ("new/a.h5", "same/a.h5", "is the input new/a.h5"),
            ("new", "link.h5", "is the input new/a.h5"),
        ):
            text = self.predict(place, "--out", out, "--overwrite", expect=2)
            self.assertIn("--out %s: %s" % (out, words), text)
        self.assertEqual(os.listdir(self.path("new")), ["a.h5"])
        self.predict("new/a*.h5", "--out", "new/out.h5")
        self.predict("new/a*.h5", "--out", "new/out.h5", "--overwrite")

    def test_options_that_do_not_fit_the_answer(self):
        self.train_on(deck=DECK.replace("[batch]", '[target]\nkind = "values"\n[batch]'))
        text = self.predict("validation.h5", "--out", "o.h5", "--top", "2", expect=2)
        self.assertIn('--top: needs one class for each sample, but target.kind is "values"', text)
        self.assertFalse(os.path.exists(self.path("o.h5")))

    def test_weights_that_are_of_no_use(self):
        self.train_on()
        self.copy("bad.h5")
        with h5py.File(self.path("bad.h5"), "a") as file:
            for tensor in file["model"].values():
                tensor[...] = 3e38
                del tensor.attrs["digest"]
        self.write("new/a.h5", self.x["validation"][:3])
        self.write("new/b.h5", self.x["validation"][3:])
        text = self.predict("new", "--out", "o.h5", expect=2, checkpoint="bad.h5")
        self.assertIn("new/a.h5: of sample 0 the model of bad.h5 computes values that are", text)
        self.assertFalse(os.path.exists(self.path("o.h5")))


if __name__ == "__main__":
    unittest.main()
