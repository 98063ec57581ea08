# SPDX-License-Identifier: Apache-2.0
"""Tests starts from the weights of another run: train --restart PATH --weights-only --skip PATTERN.

Frozen tensors show what a start takes: they have the initial values of a fresh run if they are
skipped, and those of the checkpoint if not, at every layout.
"""

import json
import os
import shutil
import tempfile
import unittest

import harness

try:
    import h5py
except ImportError:
    h5py = None

DECK = """
[run]
name = "start"
seed = 3
deterministic = true
stop = "1 step"
%(model)s
[data]
train = "%(data)s"
workers = 1
[batch]
global = 8
micro = 4
[optimizer]
kind = "adamw"
ema = 0.9
groups = [%(groups)s]
[schedule]
kind = "constant"
rate = 1e-2
[monitor]
every = "1 step"
tensorboard = false
"""
GPT = """
[model]
kind = "gpt"
layers = 2
heads = 2
width = 8
context = 8
vocabulary = %d
"""
VIT = """
[model]
kind = "vit"
patch = 4
layers = 2
heads = 2
width = 16
pool = "%s"
"""
TENSOR, PIPELINE = ("--set", "parallel.tensor=2"), ("--set", "parallel.pipeline=2")
SHARD = ("--set", "parallel.shard=parameters")
# Of each family: the table [model] before and after, the datasets, the head, a tensor that is
# trained, and layouts (ranks, arguments).
FAMILIES = {
    "resnet": (
        *2 * ('[model]\nkind = "resnet"\ndepth = 8\nwidth = 4\nstem = "small"\n',),
        *("data/five", "data/three", "fc.*", "bn1.weight"),
        [(1, ()), (2, PIPELINE)],
    ),
    "mlp": (
        *2 * ('[model]\nkind = "mlp"\nwidths = [16]\n',),
        *("data/five", "data/three", "layers.1.*", "layers.0.bias"),
        [(1, ()), (2, SHARD)],
    ),
    "gpt": (
        *(GPT % 300, GPT % 260),
        *("data/text/train", "data/text/train", "wte.*", "ln_f.bias"),
        [(1, ()), (2, PIPELINE), (2, TENSOR)],
    ),
    "vit": (
        *2 * (VIT % "token",),
        *("data/five", "data/three", "head.*", "norm.bias"),
        [(1, ()), (2, PIPELINE), (2, (*TENSOR, "--set", "parallel.sequence=true"))],
    ),
}


def trained_alone(name):
    return '{ match = "%s" }, { match = "*", frozen = true }' % name


class FineTune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.shared = tempfile.mkdtemp(prefix="trireme-test-")
        for name, classes in (("five", 5), ("three", 3)):
            harness.make_dataset("%s/%s" % (cls.shared, name), 32, classes=classes)
        harness.make_dataset(cls.shared + "/large", 32, size=20, classes=3)
        harness.make_text(cls.shared + "/text")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared, ignore_errors=True)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.symlink(self.shared, self.folder + "/data")

    def train(self, folder, model, data, groups, *arguments, ranks=1, expect=0):
        with open(self.folder + "/deck.toml", "w") as file:
            file.write(DECK % {"model": model, "data": data, "groups": groups})
        result = harness.run(
            *("train", "deck.toml", "--set", "run.folder=" + folder, *arguments),
            ranks=ranks,
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def tensors(self, folder, step=1):
        """Returns the digests of the tensors of a checkpoint by their paths."""
        result = harness.run(
            *("inspect", "--json", "%s/checkpoints/step_%09d.h5" % (folder, step)), cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, result.text)
        return {path: of["digest"] for path, of in json.loads(result.stdout)["tensors"].items()}

    def start(self, family="vit", restart="from/checkpoints/step_000000001.h5"):
        """Trains a checkpoint, and returns the arguments of train() for a start from it."""
        before, after, old, new, _, trained, _ = FAMILIES[family]
        self.train("from", before, old, "")
        return after, new, trained_alone(trained), "--restart", restart

    def test_skipped_tensors_are_those_of_a_fresh_run(self):
        for family, (_, after, _, new, head, trained, layouts) in FAMILIES.items():
            start, skip = self.start(family), ("--weights-only", "--skip", head)
            self.train("fresh", after, new, trained_alone(trained))
            before, fresh = self.tensors("from"), self.tensors("fresh")
            for ranks, layout in layouts:
                with self.subTest(family, layout=layout):
                    text = self.train("run", *start, *skip, *layout, ranks=ranks)
                    self.assertRegex(text, r"--skip: \d tensors? begins? from initial values: ")
                    for path, digest in self.tensors("run").items():
                        group, name = path.split("/", 1)
                        if group == "optimizer" or name == trained or "running" in name:
                            continue
                        skipped = name.startswith(head[:-1])
                        expected = (fresh if skipped else before)["model/" + name]
                        self.assertEqual(digest, expected, path)
                        self.assertNotEqual(fresh["model/" + name] == expected, not skipped, path)
                shutil.rmtree(self.folder + "/run")
            shutil.rmtree(self.folder + "/from")
            shutil.rmtree(self.folder + "/fresh")

    def assert_center_is_kept(self, old, new, leading):
        """Compares positions of 3 x 3 and 5 x 5, whose centers are at the same place."""
        with h5py.File(old) as old, h5py.File(new) as new:
            old, new = (file["model/pos_embed"][0] for file in (old, new))
        self.assertEqual(new[:leading].tolist(), old[:leading].tolist())
        self.assertLess(abs(new[leading + 12] - old[leading + 4]).max(), 1e-6)

    def test_positions_of_another_grid_are_interpolated(self):
        frozen = '{ match = "pos_embed", frozen = true }'
        source = "from/checkpoints/step_000000001.h5"
        layouts = [(2, TENSOR), (2, PIPELINE), (2, SHARD)]
        for pool, leading, more in (("token", 1, layouts), ("mean", 0, [])):
            model, restart = VIT % pool, ("--restart", source, "--weights-only")
            self.train("from", model, "data/three", "")
            digests = set()
            for ranks, layout in [(1, ()), *more]:
                text = self.train(
                    "run", model, "data/large", frozen, *restart, *layout, ranks=ranks
                )
                self.assertIn("pos_embed is interpolated from 3 x 3 to 5 x 5 positions", text)
                tensors = self.tensors("run")
                self.assertEqual(tensors["ema/pos_embed"], tensors["model/pos_embed"])
                digests.add(tensors["model/pos_embed"])
                if h5py:
                    run = self.folder + "/run/checkpoints/step_000000001.h5"
                    self.assert_center_is_kept(self.folder + "/" + source, run, leading)
                shutil.rmtree(self.folder + "/run")
            self.assertEqual(len(digests), 1)
            for expected, arguments in [
                (
                    "images of 12 x 12",
                    ("evaluate", "deck.toml", "--checkpoint", source, "--split", "train"),
                ),
                ("data.train", ("train", "deck.toml", *restart[:2])),
            ]:
                result = harness.run(*arguments, cwd=self.folder)
                self.assertEqual(result.returncode, 2, result.text)
                self.assertIn(expected, result.text)
            shutil.rmtree(self.folder + "/from")

    @unittest.skipIf(h5py is None, "h5py is not installed")
    def test_damaged_positions_are_not_interpolated(self):
        self.train("from", VIT % "token", "data/three", "")
        with h5py.File(self.folder + "/from/checkpoints/step_000000001.h5") as whole, h5py.File(
            self.folder + "/damaged.h5", "w"
        ) as file:  # It has no seal, which would show the damage, too.
            for group in whole:
                whole.copy(group, file)
            file.attrs.update(whole.attrs)
            file["model/pos_embed"][0, 5, 7] += 1
        arguments = ("run", VIT % "token", "data/large", "", "--restart", "damaged.h5")
        for ranks in (1, 2):
            text = self.train(*arguments, "--weights-only", ranks=ranks, expect=2)
            self.assertIn("model/pos_embed do not match its digest", text)
        self.train(*arguments, "--weights-only", "--skip", "pos_embed")

    def test_the_options_and_patterns_are_checked(self):
        start, only = self.start(), "--weights-only"
        for arguments, words in [
            ((*start, only), ["2 tensors do not fit", "head.bias", "--skip 'head.*'"]),
            ((*start, "--skip", "head.*"), ["--skip goes with --restart PATH --weights-only"]),
            ((*start[:3], "--skip", "head.*"), ["--skip goes with --restart PATH"]),
            ((*start, only, "--skip", "haed.*"), ["--skip haed.*", "closest are head.bias"]),
            ((*start, only, "--skip", ""), ["--skip"]),
        ]:
            with self.subTest(arguments[3:]):
                text = self.train("run", *arguments, expect=2)
                for word in words:
                    self.assertIn(word, text)
                self.assertFalse(os.path.exists(self.folder + "/run"))

    def test_a_run_with_checkpoints_does_not_skip_again(self):
        start = (*self.start(), "--weights-only", "--skip", "head.*")
        all_trained = (*start[:2], "", *start[3:])
        for folder, stops in (("once", (3,)), ("twice", (1, 3))):
            for steps in stops:
                text = self.train(folder, *all_trained, "--set", "run.stop=%d steps" % steps)
            self.assertEqual("is ignored" in text, folder == "twice", text)
            self.assertEqual("initial values" in text, folder == "once", text)
        self.assertEqual(self.tensors("once", 3), self.tensors("twice", 3))


if __name__ == "__main__":
    harness.main(at_once=2)
