# SPDX-License-Identifier: Apache-2.0
"""Tests networks of model.blocks at many layouts: the losses, gradient norms and bits of one rank.

One network takes pixels, with group norms, and one takes tokens.
"""

import json
import tempfile
import unittest

import harness
from layout_case import LAYOUTS, LayoutCase, name_of

DECK = """
[run]
name = "chain"
folder = "run"
seed = 3
deterministic = %(deterministic)s
stop = "%(steps)d steps"
[model]
kind = "chain"
blocks = %(blocks)s
[data]
train = "data/train"
validation = "data/validation"
workers = 1
[data.augment]
flip = true
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

CONV = '{ kind = "conv", channels = %d, kernel = 3, bias = false%s }, '
PERIODIC = ', padding_mode = "periodic"'
NORM = '{ kind = "norm", norm = "group", groups = 4 }, '
RELU = '{ kind = "activation" }, '
PIXELS = (
    "["
    + CONV % (8, PERIODIC)
    + NORM
    + RELU
    + '{ kind = "residual", body = ['
    + CONV % (16, ", stride = 2")
    + NORM
    + RELU
    + CONV % (16, ", dilation = 2" + PERIODIC)
    + NORM
    + "] }, "
    + RELU
    + '{ kind = "conv", channels = 16, kernel = 2, padding = [0, 1] }, '
    + '{ kind = "upsample", factor = 2 }, { kind = "pool" }, '
    + '{ kind = "activation", activation = "silu" }, { kind = "pool" }, { kind = "flatten" }, '
    + '{ kind = "dropout", rate = 0.1 }, { kind = "linear", width = 24 }, '
    + '{ kind = "activation", activation = "gelu" }, { kind = "linear", width = 5 }]'
)
TOKENS = (
    '[{ kind = "patches", patch = 3, width = 24 }, { kind = "positions" }, '
    '{ kind = "residual", repeat = 2, body = [{ kind = "norm", norm = "layer" }, '
    '{ kind = "attention", heads = 4 }] }, '
    '{ kind = "residual", drop_path = 0.2, body = [{ kind = "norm", norm = "rms" }, '
    '{ kind = "linear", width = 32 }, { kind = "activation", activation = "gelu" }, '
    '{ kind = "linear", width = 24 }] }, '
    '{ kind = "residual", body = [{ kind = "transpose" }, { kind = "linear", width = 16 }, '
    '{ kind = "transpose" }] }, { kind = "pool", pool = "global" }, '
    '{ kind = "norm", norm = "layer" }, { kind = "linear", width = 5 }]'
)
UNFIT = '[{ kind = "flatten" }, { kind = "conv", channels = 1, kernel = 1 }]'
FORMS = {
    name: {"blocks": blocks, "deterministic": "false", "steps": 4}
    for name, blocks in (("pixels", PIXELS), ("tokens", TOKENS))
}


class ChainLayouts(LayoutCase):
    deck = DECK

    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        harness.make_dataset(cls.folder + "/data/train", 384)
        harness.make_dataset(cls.folder + "/data/validation", 90, seed=2, shards=1)

    def test_losses_do_not_depend_on_the_layout(self):
        whole = [
            (ranks, parallel)
            for ranks, parallel in LAYOUTS
            if ranks <= 6 and "tensor" not in parallel
        ]
        self.assertGreater(len(whole), 12)
        self.check_layouts(FORMS["pixels"], whole)
        self.check_layouts(FORMS["tokens"], [case for case in whole if case[0] > 2])

    def test_deterministic_bits(self):
        """Tests 1, 2, 4 and 8 replicas, kinds of sharding, recomputation, and offload."""
        everything = '["optimizer", "parameters", "activations"]'
        for form in FORMS.values():
            digests = {}
            for ranks, parallel in [
                (1, {}),
                (1, {"shard": "parameters", "offload": everything}),
                (2, {"data": 2, "shard": "optimizer"}),
                (4, {"data": 4, "shard": "gradients", "recompute": "every 2"}),
                (8, {"data": 8, "shard": "parameters"}),
            ]:
                folder = self.train(
                    {**form, "deterministic": "true"}, ranks, parallel, "--set", "batch.global=32"
                )
                digests[name_of(ranks, parallel)] = harness.digest(
                    folder + "/checkpoints/step_000000004.h5"
                )
            self.assertEqual(len(set(digests.values())), 1, digests)

    def test_a_killed_run_goes_on(self):
        form = {**FORMS["pixels"], "deterministic": "true"}
        every = ("--set", "checkpoint.every=2 steps")
        whole = self.train(form, 2, {"data": 2}, *every)
        killed = self.train(
            form,
            2,
            {"data": 2},
            *every,
            "--set",
            "debug.fault=kill rank 1 step 3",
            "--allow-faults",
            expect=137,
        )
        self.train(form, 2, {"data": 2}, *every, "--set", "run.folder=" + killed)
        self.assertEqual(
            *(
                harness.digest(folder + "/checkpoints/step_000000004.h5")
                for folder in (whole, killed)
            )
        )

    def test_other_precisions_learn(self):
        for form in FORMS.values():
            for compute in ("bfloat16", "float16"):
                with self.subTest(compute=compute):
                    rows, _ = self.rows(
                        self.train(
                            {**form, "steps": 12},
                            *(2, {"pipeline": 2}),
                            *("--set", "precision.compute=" + compute),
                            *("--set", "schedule.rate=1e-2"),
                        )
                    )
                    self.assertLess(rows[-1]["loss"], 0.97 * rows[0]["loss"])

    def check(self, form, *arguments, expect=0):
        with open(self.folder + "/deck.toml", "w") as file:
            file.write(DECK % form)
        result = harness.run("check", "deck.toml", *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def test_check_prints_the_blocks(self):
        text = self.check(FORMS["pixels"])
        for words in (
            "blocks.0   conv, group norm, relu",
            "blocks.3   residual, relu",
            "[6, 6, 16]",
        ):
            self.assertIn(words, text)
        blocks = json.loads(self.check(FORMS["tokens"], "--json"))["blocks"]
        self.assertEqual([block["name"] for block in blocks][0], "blocks.0")
        self.assertEqual(blocks[0]["output"], [16, 24])
        # patches 9 x 24 + 24, positions 16 x 24; two operations for each product
        self.assertEqual(blocks[0]["weights"], 10 * 24 + 16 * 24)
        self.assertEqual(blocks[0]["forward_flops"], 2 * 16 * 9 * 24)
        self.assertEqual(blocks[0]["activation_bytes"], 2 * 16 * 24 * 4)
        self.assertEqual(blocks[-1]["output"], [5])

    def test_what_does_not_fit_is_refused(self):
        for settings, words in [
            (("parallel.tensor=2",), ("parallel.tensor", "chain", "more data ranks or stages")),
            (("model.blocks=[]",), ("model.blocks", "must not be empty")),
            (("model.blocks=" + UNFIT,), ("--set model.blocks", "blocks.1 (conv)", "[144]")),
            (('model.blocks=[{ kind = "flatten" }]',), ("5 classes", "[144]")),
            (("precision.compute=float8",), ("float8",)),
            (("model.depth=20",), ("depth", 'kind = "resnet"')),
        ]:
            with self.subTest(settings):
                text = self.check(
                    FORMS["pixels"],
                    *(word for setting in settings for word in ("--set", setting)),
                    expect=2,
                )
                for word in words:
                    self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
