# SPDX-License-Identifier: Apache-2.0
"""Tests a vision transformer at many layouts.

Splitting, sharding, recomputation and schedules keep the losses and gradient norms of one rank.
With deterministic = true they keep the bits.
"""

import tempfile
import unittest

import harness
from layout_case import LAYOUTS, LayoutCase, name_of

DECK = """
[run]
name = "vit"
folder = "run"
seed = 3
deterministic = %(deterministic)s
stop = "%(steps)d steps"
[model]
kind = "vit"
patch = 3
layers = 3
heads = 4
width = 32
pool = "%(pool)s"
layer_scale = %(layer_scale)s
dropout = %(dropout)s
drop_path = %(dropout)s
[data]
train = "data/train"
validation = "data/validation"
workers = 1
[data.augment]
flip = true
mixup = 0.2
normalize = { mean = [0.4], std = [0.25] }
[batch]
global = 48
micro = 4
[parallel]
bucket_mb = 0.02
[optimizer]
kind = "adamw"
weight_decay = 0.1
clip_norm = 0.5
[schedule]
kind = "constant"
rate = 1e-3
[evaluate]
every = "2 steps"
[checkpoint]
every = "1000 steps"
[monitor]
every = "1 step"
tensorboard = false
"""

TOKEN = {
    "pool": "token",
    "layer_scale": "0",
    "dropout": "0.1",
    "deterministic": "false",
    "steps": 4,
}
MEAN = {**TOKEN, "pool": "mean", "layer_scale": "0.1", "dropout": "0"}


class VitLayouts(LayoutCase):
    deck = DECK

    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        harness.make_dataset(cls.folder + "/data/train", 384)
        harness.make_dataset(cls.folder + "/data/validation", 90, seed=2, shards=1)

    def test_class_token_at_split_layouts(self):
        split = [
            (ranks, parallel)
            for ranks, parallel in LAYOUTS
            if ranks <= 8 and parallel.get("tensor", 1) * parallel.get("pipeline", 1) in (2, 4)
            if parallel.get("pipeline", 1) < 4  # of three layers
        ]
        self.assertGreater(len(split), 12)
        self.check_layouts(TOKEN, split)

    def test_mean_of_patches(self):
        self.check_layouts(MEAN, [layout for layout in LAYOUTS if layout[0] in (8, 12)])

    def test_deterministic_bits(self):
        """Tests 1, 2, 4 and 8 replicas, kinds of sharding, and recomputation."""
        form, more = {**TOKEN, "deterministic": "true"}, ("--set", "batch.global=32")
        digests = {}
        for ranks, parallel in [
            (1, {}),
            (2, {"data": 2, "shard": "optimizer"}),
            (4, {"data": 4, "shard": "gradients", "recompute": "every 2"}),
            (8, {"data": 8, "shard": "parameters"}),
        ]:
            folder = self.train(form, ranks, parallel, *more)
            digests[name_of(ranks, parallel)] = harness.digest(
                folder + "/checkpoints/step_000000004.h5"
            )
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_offload_leaves_every_bit(self):
        form = {**TOKEN, "deterministic": "true"}
        everything = 'parallel.offload=["optimizer", "parameters", "activations"]'
        for ranks, parallel in [
            (1, {"shard": "parameters"}),
            (4, {"data": 2, "tensor": 2, "shard": "parameters"}),
        ]:
            with self.subTest(layout=name_of(ranks, parallel)):
                digests = {
                    harness.digest(
                        self.train(form, ranks, parallel, *more) + "/checkpoints/step_000000004.h5"
                    )
                    for more in ((), ("--set", everything))
                }
                self.assertEqual(len(digests), 1)

    def test_other_precisions_learn(self):
        for compute in ("bfloat16", "float16"):
            with self.subTest(compute=compute):
                one, two = (
                    self.rows(
                        self.train(
                            {**MEAN, "steps": 12},
                            ranks,
                            parallel,
                            *("--set", "precision.compute=" + compute),
                            *("--set", "schedule.rate=1e-2"),
                        )
                    )
                    for ranks, parallel in [(1, {}), (4, {"data": 2, "tensor": 2})]
                )
                self.assertLess(one[0][-1]["loss"], 0.97 * one[0][0]["loss"])
                for a, b in zip(one[0], two[0], strict=True):
                    self.assertLess(abs(a["loss"] - b["loss"]) / a["loss"], 0.02)

    def test_one_checkpoint_goes_on_at_other_layouts(self):
        one = self.rows(self.train(TOKEN, 1, {}))
        folder = self.train(
            TOKEN,
            8,
            {"data": 2, "tensor": 2, "pipeline": 2, "shard": "optimizer"},
            *("--set", "run.stop=2 steps"),
        )
        self.train(TOKEN, 3, {"data": 3}, "--set", "run.folder=" + folder)
        self.check_against((one[0], []), (harness.read_rows(folder, "train"), []), "restart")

    def test_what_does_not_fit_is_refused(self):
        for settings, words in [
            (("model.patch=5",), ("model.patch", "12 x 12", "4 or 6")),
            (("model.heads=5",), ("model.heads", "model.width = 32")),
            (("precision.compute=float8",), ("float8",)),
            (("model.mlp_ratio=0.01",), ("mlp_ratio",)),
            (("model.pool=max",), ("pool", "token", "mean")),
            (
                ("parallel.tensor=4", "parallel.sequence=true", "batch.micro=2"),
                ("parallel.sequence", "batch.micro = 2 x 17 rows", "use batch.micro = 4"),
            ),
        ]:
            with self.subTest(settings):
                with open(self.folder + "/deck.toml", "w") as file:
                    file.write(DECK % TOKEN)
                result = harness.run(
                    "check",
                    "deck.toml",
                    *(word for setting in settings for word in ("--set", setting)),
                    cwd=self.folder,
                )
                self.assertEqual(result.returncode, 2, result.text)
                for word in words:
                    self.assertIn(word, result.text)


if __name__ == "__main__":
    unittest.main()
