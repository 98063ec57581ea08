# SPDX-License-Identifier: Apache-2.0
"""Tests `scripts/compare.py ranks` and the modules that it shares with other commands.

A comparison of a tiny network with the program: table, rows, resumption. Rates, binding, results,
bad options and an interruption without it.
"""

import contextlib
import io
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import harness

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from compare import processes, ranks, results  # noqa: E402
from compare.models import MODELS, deck_of  # noqa: E402

# It prints a version. Otherwise it and its child hold a pipe open for writing.
HANGING_PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo "trireme 0"; exit; fi
exec 9> %s
echo started >&9
sleep 60
"""
ROW = {
    **dict.fromkeys(("processor", "launcher", "trireme", "allocator", "date"), "this"),
    **{"cell": "tiny:float32", "program": "ranks", "round": 1, "cores": [0, 1], "pieces": None},
    **dict.fromkeys(("rate", *ranks.PHASES), 1.0),
}


def run(*words, command="ranks", cores=None, **variables):
    return subprocess.run(
        [sys.executable, SCRIPTS / "compare.py", command, "--trireme", harness.TRIREME, *words],
        env=os.environ | variables,
        preexec_fn=cores and (lambda: os.sched_setaffinity(0, cores)),
        capture_output=True,
        text=True,
        timeout=250,
    )


def results_in(path):
    return results.Results(path, ranks.VALUES, {})


def needs_cores(test):
    enough = len(os.sched_getaffinity(0)) >= results.CORES
    return unittest.skipUnless(enough, "one core")(test)


class FakeBench:
    """Returns steps of `seconds` for each copy of a layout, the last of them as given."""

    def __init__(self, seconds):
        self.seconds = seconds

    def train(self, model, precision, layout, steps, seconds):
        row = {key: 0.0 for key in ranks.PHASES}
        rows = [{**row, "step_s": 9.0, "comm_exposed_s": 9.0}] * (steps - len(self.seconds))
        rows += [{**row, "step_s": s, "comm_exposed_s": s / 10} for s in self.seconds]
        return [rows] * layout.copies


class CompareRanks(unittest.TestCase):
    def test_decks_of_all_models_are_valid(self):
        blocks = 4 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048)
        weights = {"gpt2": 124439808, "llama": blocks + 2048 + 2 * 8192 * 2048}
        for model in MODELS.values():
            with self.subTest(model.name), tempfile.TemporaryDirectory() as folder:
                data = (
                    f"tokens:{model.context * 64},{model.vocabulary}"
                    if model.unit == "tokens"
                    else f"images:1024,{model.side}x{model.side}x{model.channels},10"
                )
                deck = Path(folder, "deck.toml")
                values = {"run.name": model.name, "data.train": "none"}
                values |= {"batch.global": model.batch, "batch.micro": model.batch}
                deck.write_text(deck_of(model, values))
                result = harness.run("check", deck, "--assume", data)
                self.assertEqual(result.returncode, 0, result.stderr)
                if model.name in weights:
                    self.assertIn(f"{weights[model.name]} weights", result.stdout)

    @needs_cores
    def test_a_comparison_is_resumed_and_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "results.jsonl")
            words = ("--cells", "tiny:float32", "--rounds", "1", "--pieces", "1")
            words += ("--results", str(file))
            first = run(*words)
            self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            self.assertEqual([row["program"] for row in rows], ["threads", "ranks", "processes"])
            self.assertTrue(all(row["rate"] > 0 for row in rows))
            self.assertGreater(rows[1]["comm_exposed_s"], 0)
            # A killed script has an incomplete last line. What it had measured is not repeated.
            text = file.read_text()
            file.write_text(text + '{"cell": "tiny')
            second = run(*words)
            self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
            self.assertEqual(file.read_text(), text + '{"cell": "tiny')
            self.assertEqual(second.stdout.splitlines()[-3:], first.stdout.splitlines()[-3:])
            # A cell without all layouts is not in the table.
            file.write_text(text.splitlines()[0] + "\n")
            self.assertEqual(run(*words, "--table").returncode, 1)
            # Rows of the same file under other --pieces are left out.
            file.write_text(text)
            other = run(*words[:-4], *words[-2:], "--pieces", "2", "--table")
            self.assertEqual(other.returncode, 1)
            self.assertIn("not in the table: tiny:float32", other.stderr)

    def test_the_rate_counts_the_samples_of_all_ranks_and_processes(self):
        model = MODELS["tiny"]  # one step of 4 images is a piece
        for program in ranks.LAYOUTS:
            row = ranks.measure(model, "float32", 3, FakeBench([0.5, 0.25, 0.125]), program, 1)
            self.assertAlmostEqual(row["rate"], 4 / 0.25)  # the median piece
            self.assertAlmostEqual(row["step_s"], 0.875 / 3)
            self.assertAlmostEqual(row["comm_exposed_s"], 0.0875 / 3)

    @needs_cores
    def test_each_rank_has_cores_of_its_own(self):
        cores = sorted(os.sched_getaffinity(0))
        show = "import os; print(sorted(os.sched_getaffinity(0)))"
        with tempfile.TemporaryDirectory() as folder:
            for rank, first, threads, expected in (
                (0, 0, 1, cores[:1]),
                (1, 0, 1, cores[1:2]),
                (0, 1, 1, cores[1:2]),
                (0, 0, 2, cores[:2]),
                (len(cores), 0, 1, cores),  # none is left
                (0, len(cores) - 1, 2, cores),  # one is left, too few
            ):
                words = [SCRIPTS / "compare/processes.py", f"{folder}/peak.", first, threads]
                text = subprocess.run(
                    [sys.executable, *map(str, words), sys.executable, "-c", show],
                    env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                ).stdout
                self.assertEqual(json.loads(text), expected)
                self.assertGreater(int(Path(folder, f"peak.{rank}").read_text()), 1 << 20)

    def test_the_rank_is_that_of_any_launcher(self):
        for rank, variables in (
            (0, {}),
            (1, {"OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "0"}),  # mpirun in a task of srun
            (2, {"PMIX_RANK": "2", "SLURM_PROCID": "2", "SLURM_STEP_ID": "0"}),  # srun --mpi=pmix
            (3, {"PMI_RANK": "3", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}),
            (4, {"SLURM_PROCID": "4", "SLURM_STEP_ID": "0"}),  # srun --mpi=none
            (0, {"SLURM_PROCID": "5"}),  # a job script
        ):
            with mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(processes.launched_rank(), rank, variables)
                # A program that a task starts is not the task itself.
                self.assertEqual(processes.environment(1).keys() & {"PMI_RANK", "PMIX_RANK"}, set())

    @needs_cores
    def test_bad_options_are_refused(self):
        cores = sorted(os.sched_getaffinity(0))
        with tempfile.TemporaryDirectory() as folder:
            new, other, empty, torch = (
                Path(folder, name) for name in ("new", "other", "empty", "torch")
            )
            other.write_text("[1]\n")
            empty.write_text("")
            torch.write_text(json.dumps({**ROW, "cell": "tiny:float32:1x2", "torch": "2"}) + "\n")
            of_ranks = Path(folder, "ranks")
            of_ranks.write_text(json.dumps(ROW) + "\n")
            for words, message, options in (
                (("--cells", "gpt3:float32"), '"gpt3" in "gpt3:float32" is none of all, tiny', {}),
                (("--cells", "gpt"), '"gpt" has 1 of 2 parts', {}),
                (("--rounds", "0"), "--rounds 0: at least 1", {}),
                (("--pieces", "0", "--results", empty), "--pieces 0: at least 1", {}),
                (("--results", other), "line 1 is no row of this command", {}),
                (("--results", empty, "--table"), "has no rows", {}),
                (("--results", "/dev/zero"), "it is no regular file", {}),
                (("--results", other / "x"), "name a file to write to", {}),
                (("--results", "/proc/x/y"), "name a file to write to", {}),
                (
                    ("--results", of_ranks, "--table"),
                    "line 1 is no row of this command",
                    {"command": "training"},
                ),
                (("--trireme", folder, "--results", new), "is not built", {}),
                (("--trireme", "/bin/echo", "--results", new), "is no trireme; --version:", {}),
                (("--results", new), "nolauncher: not found", {"MPIEXEC": "nolauncher"}),
                (("--results", new), "this process may use 1", {"cores": cores[:1]}),
            ):
                result = run(*words, **options)
                self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
                self.assertIn(message, result.stderr)
            self.assertFalse(new.exists())

    def test_only_an_own_file_is_changed_and_only_by_appending(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "results")
            for text in (
                "notes without an end",
                "[1]\nnotes",
                *(json.dumps({**ROW, "rate": rate}) for rate in ("x", math.nan, 0, True)),
            ):
                path.write_text(text)
                with self.assertRaisesRegex(ValueError, "no row of this command"):
                    results_in(path).rows()
                self.assertEqual(path.read_text(), text)
            text = json.dumps(ROW) + "\n"
            path.write_text(text + '{"cell": "tiny')
            self.assertEqual(results_in(path).rows(), [ROW])
            self.assertEqual(path.read_text(), text + '{"cell": "tiny')
            results_in(path).append(ROW)
            self.assertEqual(path.read_text(), 2 * text)

    def test_measurements_under_other_conditions_are_repeated(self):
        with tempfile.TemporaryDirectory() as folder:
            file = results_in(Path(folder, "results"))
            phases = dict.fromkeys(ranks.PHASES, 1.0)

            def measure(setting):
                before = len(file.rows())
                with contextlib.redirect_stdout(io.StringIO()):
                    results.measure_in_turns(
                        *("tiny:float32", ["ranks"], 1, file, {**ROW, **setting}),
                        lambda program, seconds: {"rate": 1.0, **phases},
                    )
                return len(file.rows()) - before

            self.assertEqual(measure({}), 1)
            self.assertEqual(measure({"date": "another"}), 0)
            for setting in ({"pieces": 3}, {"cores": [2, 3]}, {"launcher": "another"}):
                self.assertEqual(measure(setting), 1)
                self.assertEqual(measure(setting), 0)

    @needs_cores
    def test_an_interrupted_script_leaves_no_process(self):
        ranks_options = "--cells tiny:float32 --trireme %s/trireme --results %s/results"
        for words in (
            "compare.py ranks " + ranks_options,
            "compare_work.py %s/trireme %s/trireme --instructions none",
        ):
            with self.subTest(words), tempfile.TemporaryDirectory() as folder:
                script, *options = (words % (folder, folder)).split()
                self.interrupt(folder, SCRIPTS / script, options)

    def interrupt(self, folder, script, options):
        """Starts a script with a program that hangs, and ends the script."""
        pipe, program = Path(folder, "pipe"), Path(folder, "trireme")
        os.mkfifo(pipe)
        program.write_text(HANGING_PROGRAM % pipe)
        program.chmod(0o700)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        with subprocess.Popen(
            [sys.executable, script, *options],
            env=os.environ | {"CXX": "true", "TMPDIR": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self.assertTrue(select.select([reader], [], [], harness.PATIENCE)[0])
            self.assertEqual(os.read(reader, 100), b"started\n")
            process.terminate()
            _, errors = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual((process.returncode, errors.count("\n")), (130, 1), errors)
        # The pipe is at its end once no process holds it.
        self.assertTrue(select.select([reader], [], [], 20)[0])
        self.assertEqual(os.read(reader, 100), b"")
        os.close(reader)
        left = {path.name for path in Path(folder).iterdir()} - {"pipe", "trireme", "results"}
        self.assertEqual(left, set(), "temporary folders")

    def test_output_and_errors_of_a_program_are_bytes_of_their_own(self):
        words = ["sh", "-c", r"printf '\377\r\n'; echo $NAME >&2"]
        outputs = processes.call(words, 1, 60, {"NAME": "given"})
        self.assertEqual(outputs, (b"\xff\r\n", b"given\n"))

    def test_a_failed_program_is_a_broken_measurement(self):
        with self.assertRaisesRegex(processes.Broken, "exit 3: why"):
            processes.call(["sh", "-c", "echo why >&2; exit 3"], 1, 60)

    def test_the_program_that_is_out_of_time_is_named(self):
        with self.assertRaisesRegex(processes.OutOfTime, "^sleep: 1 s are over"):
            processes.call_together([["sleep", "60"], ["true"]], 1, 1)


if __name__ == "__main__":
    unittest.main()
