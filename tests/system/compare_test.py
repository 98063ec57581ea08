# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/compare.py as far as it needs no PyTorch and no time.

The table of `training`, helps, bad options, and Pythons without PyTorch.
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))
from compare import results, training  # noqa: E402

CELL = training.parse_cells("tiny:float32:1x2")[0]
LOSSES = [2.5, 2.4, 2.3, 2.2, 2.1]


def row(program, rate=1.0, losses=LOSSES, **more):
    conditions = dict.fromkeys(("processor", "trireme", "allocator", "date", "torch"), "this")
    names = {"cell": CELL.name, "program": program, "round": 1, **conditions}
    return {**names, "rate": rate, "peak_bytes": 1 << 30, "losses": losses, **more}


def table_of(rows):
    """Returns whether the table is whole, its rows, and what is printed to standard error."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        whole = training.print_table([CELL], rows)
    return whole, out.getvalue().splitlines()[2:], errors.getvalue()


class Table(unittest.TestCase):
    def test_the_ratio_is_to_the_fastest_form(self):
        rows = [row("Trireme", 6.0), row("PyTorch eager", 2.0), row("PyTorch compile", 3.0)]
        whole, [line], _ = table_of(rows)
        self.assertTrue(whole)
        self.assertIn("| compile | 2.00 |", line)

    def test_there_is_no_ratio_before_all_forms_were_tried(self):
        rows = [row("Trireme", 6.0), row("PyTorch eager", 2.0)]
        for some in (rows, rows[:1], rows[1:], []):
            self.assertEqual(table_of(some), (False, [], f"not in the table: {CELL.name}\n"))
        broken = {**row("PyTorch compile"), "broken": "no compiler"}
        del broken["rate"]
        whole, [line, reason], _ = table_of([*rows, broken])
        self.assertTrue(whole)
        self.assertIn("| eager | 3.00 |", line)
        self.assertIn("no compiler", reason)

    def test_there_is_no_ratio_if_losses_differ(self):
        other = [2.5, 2.4, 2.3, 2.2, 2.102]
        forms = [row("PyTorch eager"), row("PyTorch compile")]
        whole, [line], _ = table_of([row("Trireme", losses=other), *forms])
        self.assertFalse(whole)
        self.assertIn("| none |", line)
        # The forms of PyTorch differ as much, but the first losses have to agree.
        forms[1]["losses"] = other
        self.assertTrue(table_of([row("Trireme", losses=other), *forms])[0])
        self.assertFalse(table_of([row("Trireme", losses=[2.6, *LOSSES[1:]]), *forms])[0])

    def test_rows_with_impossible_values_are_refused(self):
        file = results.Results(Path("unused"), training.VALUES, {"torch": results.is_text})
        self.assertTrue(file.is_row(row("Trireme")))
        for change in (
            {"losses": []},
            {"losses": [2.5, float("nan"), 2.3, 2.2, 2.1]},
            {"losses": [2.5, 2.4, 2.3, 2.2, None]},
            {"rate": 0},
            {"rate": float("inf")},
            {"peak_bytes": "1"},
            {"torch": None},
        ):
            self.assertFalse(file.is_row(row("Trireme") | change), change)


class Options(unittest.TestCase):
    def run_without_torch(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch.py").write_text("raise ImportError\n")
            return subprocess.run(
                [sys.executable, SCRIPTS / "compare.py", *words],
                env=os.environ | {"PYTHONPATH": folder},
                cwd=folder,
                capture_output=True,
                text=True,
            )

    def test_the_help_names_each_command_with_an_example(self):
        text = self.run_without_torch("--help").stdout
        for command in ("training", "generation", "loaders", "ranks", "prediction"):
            self.assertIn(f"scripts/compare.py {command} --", text)
            found = self.run_without_torch(command, "--help")
            self.assertEqual((found.returncode, found.stderr), (0, ""))

    def test_without_pytorch_nothing_is_measured(self):
        deck = ROOT / "inputs/examples/bible_gpt.toml"
        for command in (["generation"], ["loaders"], ["training", "--deck", deck]):
            result = self.run_without_torch(*command, "--trireme", harness.TRIREME)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("skipped: this Python has no torch; python3 -m venv V", result.stdout)

    def test_bad_options_are_refused(self):
        file = Path(__file__).resolve()
        for command, words, message in (
            ("generation", ("--tokens", "1"), "--tokens 1: at least 2"),
            ("generation", ("--prompt", "0"), "--prompt 0: at least 1"),
            ("generation", ("--rounds", "0"), "--rounds 0: at least 1"),
            ("generation", ("--prompt", "1000"), "together at most --context 1024"),
            ("generation", ("--vocabulary", "255"), "--vocabulary 255: at least 256"),
            ("generation", ("--heads", "7"), "--width 768: not divisible by --heads 7"),
            ("generation", ("--trireme", "nothing"), "is not built"),
            ("loaders", ("--trireme", "/bin/echo"), "is no trireme; --version:"),
            ("prediction", ("--only", "gpt3"), "--only: unknown deck gpt3; known: resnet18"),
            ("prediction", ("--steps", "4"), "--steps must be at least 5"),
            ("prediction", ("--folder", file), "a file has this name"),
            ("prediction", ("--folder", file.parent), "name a new one"),
        ):
            result = self.run_without_torch(command, *words)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
