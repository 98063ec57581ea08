# SPDX-License-Identifier: Apache-2.0
"""Tests run_table.py: means of epochs, repeated steps, an incomplete last line, missing values."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import run_table  # noqa: E402


def train(step, epoch, loss, rate=100.0):
    return {"kind": "train", "step": step, "epoch": epoch, "loss": loss, "samples_per_s": rate}


class RunTable(unittest.TestCase):
    def table(self, rows, torn=""):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "metrics.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows) + torn
            )
            return [line.split() for line in run_table.table(folder)]

    def test_means_of_an_epoch(self):
        lines = self.table(
            [
                train(1, 0.5, 3.0),
                train(2, 1.0, 1.0, rate=None),
                train(3, 1.5, 0.5),
                {
                    "kind": "evaluate",
                    "step": 2,
                    "epoch": 1.0,
                    "split": "validation",
                    "samples": 10,
                    "loss": 0.25,
                    "top1": 0.9,
                },
            ]
        )
        self.assertEqual(lines[1], ["1", "2.0000", "0.2500", "90.00%", "100"])
        self.assertEqual(lines[2], ["2", "0.5000", "-", "-", "100"])
        self.assertEqual(len(lines), 3)

    def test_speed_has_the_unit_of_the_run(self):
        tokens = train(1, 0.5, 1.0)
        tokens["tokens_per_s"] = 6400.0
        for row, unit, speed in (
            (train(1, 0.5, 1.0), "images/s", "100"),
            (tokens, "tokens/s", "6400"),
        ):
            lines = self.table([row])
            self.assertEqual((lines[0][-1], lines[1][-1]), (unit, speed))

    def test_the_last_validation_within_an_epoch_counts_for_it(self):
        rows = [
            {
                "kind": "evaluate",
                "step": step,
                "epoch": epoch,
                "split": "validation",
                "samples": 7,
                "loss": loss,
                "top1": 0.5,
            }
            for step, epoch, loss in ((1, 0.1, 4.0), (2, 0.2, 2.0), (11, 1.1, 1.0))
        ]
        lines = self.table([train(1, 0.1, 3.0), train(2, 0.2, 3.0), train(11, 1.1, 3.0)] + rows)
        self.assertEqual(
            [line[:3] for line in lines[1:]], [["1", "3.0000", "2.0000"], ["2", "3.0000", "1.0000"]]
        )

    def test_last_row_of_a_step_counts(self):
        lines = self.table([train(1, 0.5, 3.0), train(2, 1.0, 9.0), train(2, 1.0, 1.0)])
        self.assertEqual(lines[1][1], "2.0000")

    def test_torn_line_and_null_loss(self):
        lines = self.table(
            [
                train(1, 0.5, None),
                train(2, 1.0, 1.0),
                {"kind": "event", "step": 1, "event": "skipped", "detail": ""},
            ],
            torn='{"kind": "tr',
        )
        self.assertEqual(lines[1][1], "1.0000")

    def test_test_set(self):
        lines = self.table(
            [
                train(1, 1.0, 1.0),
                {
                    "kind": "evaluate",
                    "step": 1,
                    "epoch": 1.0,
                    "split": "test",
                    "samples": 7,
                    "loss": 1.5,
                    "top1": 0.5,
                },
            ]
        )
        self.assertIn("50.00%,", lines[-1])
        self.assertEqual(len(lines), 3)  # the validation of an epoch has no line of its own


if __name__ == "__main__":
    unittest.main()
