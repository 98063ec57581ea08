# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/compare.py as far as it needs no PyTorch and no time.

The table of `training`, values of decks, helps, bad options, and Pythons without PyTorch.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import harness

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))
from compare import deck, processes, results, training  # noqa: E402

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


class Decks(unittest.TestCase):
    def read(self, text, *settings, change=list):
        """Returns the values of a deck. `change`: what becomes of the rows of the program."""

        def call(words):
            if "--keys" not in words:  # the data of the deck are not there
                return b"", b""
            return json.dumps(list(change(json.loads(processes.call(words)[0])))).encode(), b""

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(deck, "call", call):
            file = Path(folder, "deck.toml")
            file.write_text(text)
            given = argparse.Namespace(trireme=harness.TRIREME, deck=file, set=settings)
            return deck.read_deck(given)

    def test_the_defaults_are_those_of_the_kinds_in_any_order(self):
        gpt = '[model]\nkind = "gpt"\n[data]\nvalidation = "v"\n[optimizer]\nkind = "adamw"\n'
        for change in (list, reversed):
            found = self.read(gpt, change=change)
            self.assertEqual((found["model.width"], found["model.norm"]), (768, "layer"))
            self.assertEqual(found["schedule.min_ratio"], 0)  # of "cosine", a default itself
            self.assertNotIn("schedule.factor", found)  # of "restarts" and "plateau"
            found = self.read(gpt, "model.norm=rms", "schedule.kind=constant", change=change)
            self.assertEqual((found["model.norm"], found["schedule.kind"]), ("rms", "constant"))

    def test_each_kind_has_a_default_of_its_own(self):
        def read(kind, change):
            rows = json.loads(processes.call([harness.TRIREME, "check", "--keys", "--json"])[0])
            return deck.defaults(list(change(rows)), {"schedule.kind": kind})

        for change in (list, reversed):
            for kind, factor in (("restarts", 1), ("plateau", 0.1)):
                self.assertEqual(read(kind, change)["schedule.factor"], factor)
            found = read("cosine", change)
            self.assertEqual((found["model.width"], found["model.norm"]), (64, "batch"))  # a ResNet

    def test_other_kinds_are_refused(self):
        for kind in ("resnet", "mlp"):
            with self.assertRaisesRegex(processes.Broken, f"model.kind = '{kind}' is not done"):
                self.read(f'[model]\nkind = "{kind}"\n')


class Options(unittest.TestCase):
    def run_without_torch(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch.py").write_text("raise ImportError('no wheel')\n")
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

    def test_a_missing_package_is_an_error_that_says_how_to_install_it(self):
        file = ROOT / "inputs/examples/bible_gpt.toml"
        for command, packages in (
            (["generation"], "torch numpy"),
            (["loaders"], "torch torchvision h5py scikit-image scikit-learn"),
            (["training", "--deck", file], "torch numpy h5py"),
        ):
            result = self.run_without_torch(*command, "--trireme", harness.TRIREME)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertIn("this Python has no torch (no wheel); python3 -m venv V", result.stderr)
            self.assertIn(f"V/bin/pip install {packages}, then", result.stderr)

    def test_nothing_is_left_if_nothing_can_be_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            for command, option in (("training", "--results"), ("prediction", "--folder")):
                path = Path(folder, command)
                words = (command, "--trireme", harness.TRIREME, option, path)
                with mock.patch.dict(os.environ, MPIEXEC="no-launcher"):
                    result = self.run_without_torch(*words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertRegex(result.stderr, "has no torch|no-launcher: not found")
                self.assertFalse(path.exists())

    def test_a_file_of_results_appears_with_its_first_row(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "new/file")
            given = argparse.Namespace(trireme=Path(harness.TRIREME), results=file)
            with mock.patch.object(results, "find_launcher"), mock.patch.object(
                results, "CORES", 1
            ):
                results.check_machine(given)
                self.assertEqual(os.listdir(file.parent), [])
                file.write_text("row")
                results.check_machine(given)
                self.assertEqual(file.read_text(), "row")

    def test_bad_options_are_refused(self):
        file = Path(__file__).resolve()
        program = ("--trireme", harness.TRIREME)
        for command, words, message in (
            ("generation", ("--tokens", "1"), "--tokens 1: at least 2"),
            ("generation", ("--prompt", "0"), "--prompt 0: at least 1"),
            ("generation", ("--rounds", "0"), "--rounds 0: at least 1"),
            ("generation", ("--prompt", "1000"), "together at most --context 1024"),
            ("generation", ("--vocabulary", "255"), "--vocabulary 255: at least 256"),
            ("generation", ("--heads", "7"), "--width 768: not divisible by --heads 7"),
            ("generation", ("--trireme", "nothing"), "is not built"),
            ("loaders", ("--trireme", "/bin/echo"), "is no trireme; --version:"),
            ("training", ("--set", "run.seed=2"), "name the deck: --deck FILE"),
            ("training", ("--deck", file, "--cells", "all:all:all"), "--cells is for cells"),
            ("training", ("--deck", file, "--rounds", "2"), "--rounds is for cells"),
            ("training", ("--results", "r", "--deck", file), "--results is for cells"),
            ("training", ("--deck", file, "--table"), "--table is for cells"),
            ("prediction", ("--only", "gpt3"), "--only: unknown deck gpt3; known: resnet18"),
            ("prediction", ("--steps", "4"), "--steps must be at least 5"),
            ("prediction", ("--folder", file), "a file has this name"),
            ("prediction", ("--folder", file.parent), "name a new one"),
            ("prediction", (*program, "--folder", file / "a"), "a: Not a directory; name a folder"),
            ("prediction", (*program, "--folder", "/proc/a"), "a: No such file or directory; name"),
            ("loaders", (*program, "--folder", file), "is no folder; name an existing one"),
        ):
            result = self.run_without_torch(command, *words)
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
