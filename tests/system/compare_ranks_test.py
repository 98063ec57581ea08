"""Tests scripts/compare_ranks.py and scripts/training_bench.py, on which it is built.

A comparison of a tiny network with the program: table, rows, resumption. Rates, binding and bad
options without it.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import compare_ranks  # noqa: E402
import training_bench  # noqa: E402
from compared_models import MODELS  # noqa: E402

WORDS = [sys.executable, SCRIPTS / "compare_ranks.py", "--trireme", harness.TRIREME]


def run(*words):
    return subprocess.run([*WORDS, *words], capture_output=True, text=True, timeout=250)


class FakeBench:
    """Returns steps of `seconds` for each copy of a layout, the last of them as given."""

    def __init__(self, seconds):
        self.seconds = seconds

    def train(self, model, precision, layout, steps, seconds):
        row = {key: 0.0 for key in compare_ranks.PHASES}
        rows = [{**row, "step_s": 9.0, "comm_exposed_s": 9.0}] * (steps - len(self.seconds))
        rows += [{**row, "step_s": s, "comm_exposed_s": s / 10} for s in self.seconds]
        return [rows] * layout.copies


class CompareRanks(unittest.TestCase):
    def test_a_comparison_is_resumed_and_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder, "results.jsonl")
            words = ("--cells", "tiny:float32", "--rounds", "1", "--pieces", "1")
            words += ("--results", str(results))
            first = run(*words)
            self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
            rows = [json.loads(line) for line in results.read_text().splitlines()]
            self.assertEqual([row["program"] for row in rows], ["threads", "ranks", "processes"])
            self.assertTrue(all(row["rate"] > 0 for row in rows))
            self.assertGreater(rows[1]["comm_exposed_s"], 0)
            # A killed script has an incomplete last line. What it had measured is not repeated.
            text = results.read_text()
            results.write_text(text + '{"cell": "tiny')
            second = run(*words)
            self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
            self.assertEqual(results.read_text(), text)
            self.assertEqual(second.stdout.splitlines()[-3:], first.stdout.splitlines()[-3:])
            # A cell without all layouts is not in the table.
            results.write_text(text.splitlines()[0] + "\n")
            self.assertEqual(run(*words, "--table").returncode, 1)

    def test_the_rate_counts_the_samples_of_all_ranks_and_processes(self):
        model = MODELS["tiny"]  # one step of 4 images is a piece
        for program in compare_ranks.LAYOUTS:
            row = compare_ranks.measure(
                FakeBench([0.5, 0.25, 0.125]), model, "float32", 3, program, 1
            )
            self.assertAlmostEqual(row["rate"], 4 / 0.25)  # the median piece
            self.assertAlmostEqual(row["step_s"], 0.875 / 3)
            self.assertAlmostEqual(row["comm_exposed_s"], 0.0875 / 3)

    def test_each_rank_has_cores_of_its_own(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("one core")
        show = "import os; print(sorted(os.sched_getaffinity(0)))"
        with tempfile.TemporaryDirectory() as folder:
            for rank, first, threads, expected in (
                (0, 0, 1, cores[:1]),
                (1, 0, 1, cores[1:2]),
                (0, 1, 1, cores[1:2]),
                (0, 0, 2, cores[:2]),
                (len(cores), 0, 1, cores),  # none is left
            ):
                words = [SCRIPTS / "training_bench.py", f"{folder}/peak.", first, threads]
                text = subprocess.run(
                    [sys.executable, *map(str, words), sys.executable, "-c", show],
                    env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                ).stdout
                self.assertEqual(json.loads(text), expected)
                self.assertGreater(int(Path(folder, f"peak.{rank}").read_text()), 1 << 20)

    def test_bad_options_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder, "other")
            other.write_text("[1]\n")
            for words, message in (
                (("--cells", "gpt3:float32"), '"gpt3" in "gpt3:float32" is none of all, tiny'),
                (("--cells", "gpt"), '"gpt" has 1 of 2 parts'),
                (("--rounds", "0"), "--rounds 0: at least 1"),
                (("--pieces", "0"), "--pieces 0: at least 1"),
                (("--results", str(other)), "lines that are no rows"),
                (("--trireme", folder), "is not built"),
            ):
                result = run(*words)
                self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
                self.assertIn(message, result.stderr)

    def test_a_failed_program_is_a_broken_measurement(self):
        with self.assertRaisesRegex(training_bench.Broken, "exit 3: why"):
            training_bench.call(["sh", "-c", "echo why >&2; exit 3"], 1, 60)
        with self.assertRaises(training_bench.OutOfTime):
            training_bench.call(["sleep", "60"], 1, 1)


if __name__ == "__main__":
    unittest.main()
