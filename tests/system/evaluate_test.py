# SPDX-License-Identifier: Apache-2.0
"""Tests `evaluate`: the numbers of the run at any layout, and layouts that it refuses."""

import json
import os
import unittest

import harness

CHECKPOINT = "run/checkpoints/step_000000005.h5"


class Evaluate(harness.Case):
    """All tests evaluate one run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(cls.shared + "/deck.toml", "w") as file:
            file.write(harness.DECK)
        os.symlink(".", cls.shared + "/data")
        words = ("train", "deck.toml", "--set", "run.stop=5 steps", *harness.DEVICE)
        result = harness.run(*words, cwd=cls.shared)
        if result.returncode != 0:
            raise RuntimeError(result.text)
        rows = harness.read_rows(cls.shared + "/run", "evaluate")
        cls.rows = {row["split"]: row for row in rows}

    def evaluate(self, *arguments, ranks=1):
        words = ("evaluate", "run/deck.toml", "--checkpoint", CHECKPOINT, *arguments)
        result = harness.run(*words, ranks=ranks, cwd=self.shared)
        self.assertEqual(result.returncode, 0, result.text)
        return result.stdout

    def test_it_gives_the_numbers_of_the_run(self):
        self.assertEqual(set(self.rows), {"validation", "test"})
        for split, row in self.rows.items():
            meant = "%s: loss %.6f, top-1 %.3f %%, top-5 %.3f %%, %d samples\n" % (
                split,
                row["loss"],
                100 * row["top1"],
                100 * row["top5"],
                row["samples"],
            )
            for ranks in (1, 2, 4):
                said = self.evaluate("--split", split, ranks=ranks)
                self.assertEqual(
                    said.count("\n" + meant) + said.startswith(meant),
                    1,
                    "%d ranks: %s" % (ranks, said),
                )

    def test_it_prints_the_row_of_the_run_as_json(self):
        row = self.rows["validation"]
        for ranks in (1, 2):
            found = json.loads(self.evaluate("--json", ranks=ranks))
            self.assertEqual(found.pop("checkpoint"), CHECKPOINT)
            for key in ("loss", "perplexity"):
                self.assertAlmostEqual(found.pop(key), row[key], places=9)
            self.assertEqual(found, {key: row[key] for key in ("split", "samples", "top1", "top5")})

    def test_it_needs_no_steps_of_whole_micro_batches(self):
        row = self.rows["validation"]
        words = ("--json", "--set", "batch.micro=7", "--set", "parallel.data=2")
        results = [json.loads(self.evaluate(*words, ranks=ranks)) for ranks in (1, 3)]
        self.assertEqual(*results)
        self.assertNotEqual(row["samples"] % 7, 0)
        self.assertEqual(results[0]["samples"], row["samples"])
        # Each micro-batch is summed in float32.
        self.assertAlmostEqual(results[0]["loss"], row["loss"], delta=1e-5 * row["loss"])

    def test_it_refuses_more_stages_than_blocks(self):
        self.write_deck(
            '[run]\nname = "mlp"\n[model]\nkind = "mlp"\nwidths = [4]\n'
            '[data]\ntrain = "data/train"\nvalidation = "data/validation"\n'
        )
        words = ("evaluate", "deck.toml", "--checkpoint", "none.h5", "--set", "parallel.pipeline=2")
        result = harness.run(*words, ranks=2, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("parallel.pipeline = 2 cuts the model into 2 parts", result.text)


if __name__ == "__main__":
    unittest.main()
