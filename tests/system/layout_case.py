# SPDX-License-Identifier: Apache-2.0
"""Trains one deck at many layouts. Losses and gradient norms must be those of one rank."""

import os
import shutil
import unittest

import harness

# Ranks, then the deck's table [parallel]. micro and accumulation follow from batch.micro.
LAYOUTS = [
    (2, {"data": 2}),
    (3, {"data": 3}),
    (6, {"data": 6, "shard": "optimizer"}),
    (4, {"data": 4, "shard": "gradients"}),
    (4, {"data": 4, "shard": "parameters"}),
    (3, {"data": 3, "shard": "parameters", "recompute": "all"}),
    (1, {"recompute": "all"}),
    (1, {"recompute": "every 2"}),
    (2, {"tensor": 2}),
    (4, {"tensor": 4}),
    (2, {"tensor": 2, "sequence": "true"}),
    (4, {"tensor": 4, "sequence": "true", "recompute": "all"}),
    (2, {"pipeline": 2, "pipeline_schedule": "gpipe"}),
    (2, {"pipeline": 2}),
    (4, {"pipeline": 4}),
    (2, {"pipeline": 2, "pipeline_schedule": "interleaved", "pipeline_chunks": 2}),
    (4, {"data": 2, "tensor": 2}),
    (6, {"data": 3, "tensor": 2, "sequence": "true", "shard": "optimizer"}),
    (4, {"data": 2, "pipeline": 2, "shard": "gradients"}),
    (6, {"data": 3, "pipeline": 2, "pipeline_schedule": "gpipe", "shard": "parameters"}),
    (4, {"tensor": 2, "pipeline": 2}),
    (8, {"data": 2, "tensor": 2, "pipeline": 2}),
    (
        8,
        {
            "data": 2,
            "tensor": 2,
            "pipeline": 2,
            "sequence": "true",
            "shard": "optimizer",
            "recompute": "every 2",
        },
    ),
    (
        8,
        {
            "data": 2,
            "tensor": 2,
            "pipeline": 2,
            "pipeline_schedule": "interleaved",
            "pipeline_chunks": 2,
            "shard": "gradients",
        },
    ),
    (
        12,
        {
            "data": 3,
            "tensor": 2,
            "pipeline": 2,
            "pipeline_schedule": "gpipe",
            "shard": "parameters",
            "sequence": "true",
        },
    ),
    (16, {"data": 4, "tensor": 2, "pipeline": 2, "shard": "parameters", "recompute": "all"}),
    (16, {"data": 1, "tensor": 4, "pipeline": 4, "sequence": "true"}),
]


def name_of(ranks, parallel):
    return "%d-" % ranks + "-".join(
        "%s.%s" % (key, str(value).replace(" ", "")) for key, value in parallel.items()
    )


class LayoutCase(unittest.TestCase):
    """`deck`: its text, with the keys of a form. `folder` has the datasets."""

    deck = ""

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def train(self, form, ranks, parallel, *more, expect=0):
        folder = name_of(ranks, parallel) + "-%d" % len(os.listdir(self.folder))
        with open(self.folder + "/deck.toml", "w") as file:
            file.write(self.deck % form)
        settings = []
        for key, value in parallel.items():
            settings += ["--set", "parallel.%s=%s" % (key, value)]
        result = harness.run(
            "train",
            "deck.toml",
            "--set",
            "run.folder=" + folder,
            *settings,
            *more,
            ranks=ranks,
            cwd=self.folder
        )
        self.assertEqual(result.returncode, expect, name_of(ranks, parallel) + "\n" + result.text)
        return os.path.join(self.folder, folder)

    def rows(self, folder):
        return harness.read_rows(folder, "train"), harness.read_rows(folder, "evaluate")

    def check_against(self, one, many, what):
        for a, b in zip(one[0], many[0], strict=True):
            self.assertLess(
                abs(a["loss"] - b["loss"]) / a["loss"],
                5e-5,
                "%s, step %d: losses %r and %r" % (what, a["step"], a["loss"], b["loss"]),
            )
            self.assertLess(
                abs(a["grad_norm"] - b["grad_norm"]) / a["grad_norm"],
                5e-4,
                "%s, step %d: norms %r and %r" % (what, a["step"], a["grad_norm"], b["grad_norm"]),
            )
        for a, b in zip(one[1], many[1], strict=True):
            self.assertEqual(a["samples"], b["samples"])
            self.assertLess(
                abs(a["loss"] - b["loss"]) / a["loss"],
                5e-5,
                "%s, validation: %r and %r" % (what, a["loss"], b["loss"]),
            )

    def check_layouts(self, form, layouts):
        one = self.rows(self.train(form, 1, {}))
        self.assertEqual(len(one[0]), form["steps"])
        self.assertLess(one[1][-1]["loss"], one[1][0]["loss"])
        for ranks, parallel in layouts:
            with self.subTest(layout=name_of(ranks, parallel)):
                self.check_against(
                    one, self.rows(self.train(form, ranks, parallel)), name_of(ranks, parallel)
                )
