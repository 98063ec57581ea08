# SPDX-License-Identifier: Apache-2.0
"""Tests a language model at many layouts.

Splitting, sharding, recomputation and schedules keep the losses and gradient norms of one rank.
With deterministic = true they keep the bits.
"""

import os
import random
import shutil
import tempfile
import unittest

import harness
from layout_case import LAYOUTS, LayoutCase, name_of

DECK = """
[run]
name = "gpt"
folder = "run"
seed = 3
deterministic = %(deterministic)s
stop = "%(steps)d steps"
[model]
kind = "gpt"
layers = 4
heads = 4
kv_heads = %(kv_heads)d
width = 32
context = 24
vocabulary = 99
mlp = "%(mlp)s"
norm = "%(norm)s"
positions = "%(positions)s"
tie_embeddings = %(tied)s
dropout = 0.1
%(numbers)s
[data]
train = "data/train"
validation = "data/validation"
workers = 1
[batch]
global = 24
micro = 2
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

GPT2 = {
    "kv_heads": 4,
    "mlp": "gelu",
    "norm": "layer",
    "positions": "learned",
    "tied": "true",
    "numbers": "",
    "deterministic": "false",
    "steps": 4,
}
LLAMA = {
    "kv_heads": 4,
    "mlp": "swiglu",
    "norm": "rms",
    "positions": "rope",
    "tied": "false",
    "numbers": "",
    "deterministic": "false",
    "steps": 4,
}


class GptLayouts(LayoutCase):
    deck = DECK

    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        rng = random.Random(5)
        words = [
            "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randrange(2, 8)))
            for _ in range(60)
        ]
        for split, count in (("train", 6000), ("validation", 700)):
            text = " ".join(rng.choice(words) for _ in range(count))
            # tokens below 99, as uint16
            with open(cls.folder + "/" + split + ".bin", "wb") as file:
                for byte in text.encode():
                    file.write(bytes([byte - 32, 0]))
            result = harness.run(
                "shard",
                "tokens",
                split + ".bin",
                "--type",
                "uint16",
                "--vocabulary",
                99,
                "--out",
                "data/" + split,
                cwd=cls.folder,
            )
            if result.returncode != 0:
                raise RuntimeError(result.text)

    def test_gpt2_form_at_every_layout(self):
        self.check_layouts(GPT2, LAYOUTS)

    def test_llama_form(self):
        self.check_layouts(LLAMA, [layout for layout in LAYOUTS if layout[0] in (2, 8, 12)])

    def test_grouped_heads(self):
        self.check_layouts(
            dict(LLAMA, kv_heads=2, tied="true"),
            [(2, {"tensor": 2}), (4, {"tensor": 2, "pipeline": 2, "sequence": "true"})],
        )

    def test_other_base_and_epsilon(self):
        form = dict(LLAMA, numbers="rope_base = 30\nnorm_epsilon = 1e-2")
        self.check_layouts(
            form,
            [
                (2, {"data": 2, "shard": "parameters", "recompute": "all"}),
                (2, {"tensor": 2, "sequence": "true"}),
                (2, {"pipeline": 2, "pipeline_schedule": "interleaved", "pipeline_chunks": 2}),
                (4, {"data": 2, "tensor": 2}),
                (4, {"tensor": 2, "pipeline": 2, "sequence": "true"}),
            ],
        )
        losses = [self.rows(self.train(f, 1, {}))[1][-1]["loss"] for f in (form, LLAMA)]
        self.assertGreater(abs(losses[0] - losses[1]) / losses[1], 5e-4)

    def test_other_optimizers(self):
        for kind in ("lamb", "lars", "sgd"):
            one = self.rows(self.train(GPT2, 1, {}, "--set", "optimizer.kind=" + kind))
            for ranks, parallel in [
                (4, {"data": 2, "tensor": 2, "shard": "optimizer"}),
                (6, {"data": 3, "pipeline": 2, "shard": "parameters"}),
            ]:
                with self.subTest(optimizer=kind, layout=name_of(ranks, parallel)):
                    self.check_against(
                        one,
                        self.rows(
                            self.train(GPT2, ranks, parallel, "--set", "optimizer.kind=" + kind)
                        ),
                        kind + " " + name_of(ranks, parallel),
                    )

    def test_muon(self):
        """Tests matrices that are whole on one data rank and split over the tensor group, also with
        a vocabulary that is not divisible."""
        more = ("--set", "optimizer.kind=muon", "--set", "optimizer.newton_schulz=float32")
        for form in (GPT2, dict(LLAMA, kv_heads=2)):
            one = self.rows(self.train(form, 1, {}, *more))
            for ranks, parallel in [
                (2, {"tensor": 2, "sequence": "true"}),
                (8, {"data": 4, "tensor": 2, "shard": "optimizer"}),
                (6, {"data": 3, "pipeline": 2, "shard": "parameters"}),
                (8, {"data": 2, "tensor": 2, "pipeline": 2, "shard": "gradients"}),
            ]:
                with self.subTest(layout=name_of(ranks, parallel)):
                    self.check_against(
                        one,
                        self.rows(self.train(form, ranks, parallel, *more)),
                        "muon " + name_of(ranks, parallel),
                    )

    def test_muon_with_groups(self):
        """Tests that stages whose weights have other rules write one checkpoint, and that a restart
        may change a rule."""
        rules = '[{ match = "*norm*", rule = "sgd" }, { match = "*o_proj*", rule = "adamw" }]'
        half = ", ".join(
            '{ match = "%s*", frozen = true }' % name
            for name in ("model.embed", "model.layers.0", "model.layers.1")
        )
        muon = ("--set", "optimizer.kind=muon", "--set", "optimizer.newton_schulz=float32")
        for groups in (rules, "[%s]" % half):
            more = muon + ("--set", "optimizer.groups=" + groups)
            one, stages = self.train(LLAMA, 1, {}, *more), self.train(
                LLAMA, 2, {"pipeline": 2}, *more
            )
            self.check_against(self.rows(one), self.rows(stages), groups)
        folder = self.train(
            LLAMA, 1, {}, *muon, "--set", "optimizer.groups=" + rules, "--set", "run.stop=2 steps"
        )
        with open(folder + "/log.txt") as log:
            self.assertRegex(log.read(), r"rules: muon: 24 tensors, .*; adamw: .*; sgd: 9 tensors")
        more = ("--set", "run.folder=" + os.path.basename(folder))
        self.train(LLAMA, 2, {"pipeline": 2}, *muon, *more)
        with open(folder + "/log.txt") as log:
            # 4 matrices have one slot, 9 norms two
            self.assertIn("has no optimizer state for 22 tensors: it starts at zero", log.read())
        self.assertEqual(len(harness.read_rows(folder, "train")), 4)

    def test_muon_bits(self):
        form = dict(GPT2, deterministic="true", steps=4)
        more = ("--set", "optimizer.kind=muon", "--set", "batch.global=16")
        digests = {
            name_of(ranks, parallel): harness.digest(
                self.train(form, ranks, parallel, *more) + "/checkpoints/step_000000004.h5"
            )
            for ranks, parallel in [
                (1, {}),
                (2, {"data": 2}),
                (4, {"data": 4, "shard": "optimizer"}),
                (8, {"data": 8, "shard": "parameters"}),
                (2, {"data": 2, "shard": "gradients", "offload": '["optimizer"]'}),
            ]
        }
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_sixty_four_ranks(self):
        more = (
            "--set",
            "batch.global=32",
            "--set",
            "run.stop=3 steps",
            "--set",
            "model.context=16",
        )
        one = self.rows(self.train(GPT2, 1, {}, *more))
        self.check_against(
            one,
            self.rows(
                self.train(
                    GPT2, 64, {"data": 4, "tensor": 4, "pipeline": 4, "shard": "optimizer"}, *more
                )
            ),
            "64 ranks",
        )

    def test_deterministic_bits(self):
        """Tests 1, 2, 4 and 8 replicas, every kind of sharding, and recomputation."""
        form = dict(GPT2, deterministic="true", steps=4)
        more = ("--set", "batch.global=16")
        digests = {}
        for ranks, parallel in [
            (1, {}),
            (2, {"data": 2}),
            (4, {"data": 4}),
            (8, {"data": 8}),
            (1, {"recompute": "all"}),
            (2, {"data": 2, "shard": "optimizer"}),
            (4, {"data": 4, "shard": "gradients", "recompute": "every 2"}),
            (8, {"data": 8, "shard": "parameters"}),
            (2, {"data": 2, "shard": "parameters", "recompute": "all"}),
        ]:
            folder = self.train(form, ranks, parallel, *more)
            digests[name_of(ranks, parallel)] = harness.digest(
                folder + "/checkpoints/step_000000004.h5"
            )
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_offload_leaves_every_bit(self):
        """Tests that state in host memory has the same bits as state on the device."""
        form = dict(GPT2, deterministic="true", steps=4)
        activations, everything = '["activations"]', '["optimizer", "parameters", "activations"]'
        for ranks, parallel, offload in [
            (1, {}, activations),
            (1, {"shard": "parameters", "recompute": "every 2"}, everything),
            (
                2,
                {"pipeline": 2, "pipeline_schedule": "interleaved", "pipeline_chunks": 2},
                activations,
            ),
            (4, {"data": 2, "pipeline": 2, "shard": "parameters"}, everything),
        ]:
            with self.subTest(layout=name_of(ranks, parallel), offload=offload):
                plain, offloaded = self.train(form, ranks, parallel), self.train(
                    form, ranks, parallel, "--set", "parallel.offload=" + offload
                )
                self.assertEqual(
                    harness.digest(plain + "/checkpoints/step_000000004.h5"),
                    harness.digest(offloaded + "/checkpoints/step_000000004.h5"),
                )
                self.assertEqual(
                    [row["loss"] for row in harness.read_rows(plain, "train")],
                    [row["loss"] for row in harness.read_rows(offloaded, "train")],
                )
                for folder, host in ((plain, False), (offloaded, True)):
                    with open(folder + "/log.txt") as log:
                        self.assertEqual("of the host (" in log.read(), host)

    def test_restart_at_other_layouts(self):
        """Tests that a checkpoint of one layout resumes at any other one."""
        one = self.rows(self.train(GPT2, 1, {}))
        for (first_ranks, first), (then_ranks, then) in [
            ((8, {"data": 2, "tensor": 2, "pipeline": 2, "shard": "optimizer"}), (3, {"data": 3})),
            ((4, {"data": 4, "shard": "parameters"}), (4, {"tensor": 2, "pipeline": 2})),
            ((2, {"pipeline": 2}), (4, {"data": 2, "tensor": 2, "shard": "gradients"})),
        ]:
            with self.subTest(first=name_of(first_ranks, first), then=name_of(then_ranks, then)):
                folder = self.train(GPT2, first_ranks, first, "--set", "run.stop=2 steps")
                self.train(
                    GPT2, then_ranks, then, "--set", "run.folder=" + os.path.basename(folder)
                )
                rows = harness.read_rows(folder, "train")
                self.check_against((one[0], []), (rows, []), "restart")

    def test_one_checkpoint_of_two_by_two_by_two_goes_on_anywhere(self):
        one = self.rows(self.train(GPT2, 1, {}))
        folder = self.train(
            GPT2,
            8,
            {"data": 2, "tensor": 2, "pipeline": 2, "shard": "optimizer"},
            "--set",
            "run.stop=2 steps",
        )
        for ranks, parallel in [
            (1, {}),
            (3, {"data": 3, "shard": "parameters"}),
            (4, {"data": 2, "pipeline": 2, "shard": "gradients"}),
            (16, {"data": 4, "tensor": 2, "pipeline": 2, "shard": "optimizer"}),
        ]:
            with self.subTest(layout=name_of(ranks, parallel)):
                copy = "%s-at-%d" % (os.path.basename(folder), ranks)
                shutil.copytree(folder, os.path.join(self.folder, copy))
                self.train(GPT2, ranks, parallel, "--set", "run.folder=" + copy)
                self.check_against(
                    (one[0], []),
                    (harness.read_rows(os.path.join(self.folder, copy), "train"), []),
                    "restart",
                )


if __name__ == "__main__":
    unittest.main()
