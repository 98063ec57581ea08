# SPDX-License-Identifier: Apache-2.0
"""Tests the job scripts in a real Slurm.

A chain of jobs with a time limit that is far too short, the signal before the end, a lost job, the
resources requested for 64 nodes, and the job script without a deck.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

import harness
import slurm_cluster

SLURM = os.environ.get("TRIREME_SLURM_FOLDER") or str(
    pathlib.Path(__file__).resolve().parents[2] / "slurm"
)
BUILD = os.environ.get("TRIREME_BUILD", "")
CMAKE = os.environ.get("CMAKE", "cmake")
# Two ranks on the one small node. The shortest limit in Slurm is a minute, and signals are sent
# every half minute. So 300 s before the end would be any time, also before the program has started.
SMALL = (
    "--partition=small",
    "--nodes=1",
    "--ntasks-per-node=2",
    "--cpus-per-task=1",
    "--gpus-per-node=0",
    "--mem=1500",
    "--signal=B:USR1@1",
)
MOST_JOBS = 40
LONG = "--time=20"  # for tests that do not depend on the limit
PATIENCE = 600  # seconds: the limit for hanging programs
# Thousands of steps on a few hundred images. At a rate that learns them by heart, the loss would
# jump, and the rules for diverging runs would end the run.
DECK = harness.DECK.replace("rate = 0.1", "rate = 1e-4").replace(
    'every = "1 step"', 'every = "10 steps"'
)

# Trains on two ranks as scripts/compare.py does. Each rank must have a number of its own.
COMPARISON = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from compare.bench import Bench, Layout
from compare.models import MODELS
layout = Layout(ranks=2, threads=1)
bench = Bench(sys.argv[2], pathlib.Path.cwd())
[rows] = bench.train(MODELS["tiny"], "float32", layout, 2, 200)
print("trained", len(rows), bench.peak_bytes(layout))
"""


class Slurm(harness.Case):
    @classmethod
    def setUpClass(cls):
        why = slurm_cluster.missing()
        if why:
            harness.skip(why)
        super().setUpClass()
        try:
            cls.cluster = slurm_cluster.Cluster()
        except RuntimeError as error:
            super().tearDownClass()
            harness.skip("no Slurm could be started here: %s" % error)
        cls.cluster.environment.update(harness.environment(), TRIREME=harness.TRIREME)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()
        super().tearDownClass()

    def setUp(self):
        super().setUp()
        self.write_deck(DECK)

    def tearDown(self):
        self.cluster.call("scancel", "--user=root", check=False)
        self.wait_for_jobs()
        super().tearDown()

    def wait_for_jobs(self):
        """Waits while the number of jobs decreases, however slow the machine is."""
        left = self.cluster.jobs()
        while left:
            self.cluster.wait(lambda: self.cluster.jobs() != left, PATIENCE, "the jobs do not end")
            left = self.cluster.jobs()

    def outputs(self):
        return "".join(path.read_text() for path in sorted(pathlib.Path(self.folder).glob("*.out")))

    def submit(self, *arguments):
        return self.cluster.call(
            "sbatch",
            "--parsable",
            *SMALL,
            LONG,
            SLURM + "/train_64nodes.sh",
            "deck.toml",
            *arguments,
            cwd=self.folder
        ).strip()

    def chain_log(self, kind):
        lines = pathlib.Path(self.path("run/chain.log")).read_text().splitlines()
        return [line for line in lines if " %s " % kind in line]

    def test_a_run_longer_than_its_jobs(self):
        """The run ends by itself after three jobs or more, with the numbers of a run without
        stops."""
        begin = time.monotonic()
        self.train(
            "--set",
            "run.folder=trial",
            "--set",
            "run.stop=200 steps",
            "--set",
            "evaluate.every=100 steps",
            ranks=2,
        )
        took = time.monotonic() - begin
        per_step = min(row["step_s"] for row in harness.read_rows(self.path("trial"), "train"))
        # Seconds that a job has for its start and its steps: several times the duration of a start
        # on this machine now. The rest of its minutes is the margin.
        window = max(8, 4 * (took - 200 * per_step))
        minutes = 1 + int(window / 40)
        # 2.7 times the steps that an undisturbed job can make, so at least three jobs. If the
        # machine was busy during the trial and is idle now, fewer jobs suffice. The run was then
        # too short for the test, and a longer one is made.
        for steps in (int(2.7 * window / per_step), int(6 * window / per_step)):
            codes = self.chain_of(steps, minutes, 60 * minutes - window)
            if len(codes) >= 3:
                break
        self.assertGreaterEqual(len(codes), 3, self.outputs())
        self.assertEqual(codes, ["75"] * (len(codes) - 1) + ["0"], self.outputs())
        with open(self.path("run/exit.json")) as file:
            record = json.load(file)
        self.assertEqual((record["code"], record["step"]), (0, steps), self.outputs())
        # The program used the clock of Slurm.
        self.assertIn("ends by itself before Slurm job", self.outputs())

        self.train("--set", "run.folder=whole", *self.options(steps), ranks=2)
        last = "checkpoints/step_%09d.h5" % steps
        self.assertEqual(
            harness.digest(self.path("run", last)), harness.digest(self.path("whole", last))
        )
        for kind, keys in (
            ("train", ("loss", "grad_norm")),
            ("evaluate", ("loss", "top1", "samples")),
        ):
            rows = [
                {
                    (row["step"], row.get("split")): [row[key] for key in keys]
                    for row in harness.read_rows(self.path(folder), kind)
                }
                for folder in ("whole", "run")
            ]
            self.assertEqual(rows[0], rows[1])
            self.assertGreater(len(rows[0]), 1)

    def options(self, steps):
        return (
            "--set",
            "run.stop=%d steps" % steps,
            "--set",
            "evaluate.every=100 steps",
            "--set",
            "checkpoint.every=1000000 steps",
        )

    def chain_of(self, steps, minutes, margin):
        """Runs a new chain with a time limit and a margin for each job. Returns the result of each
        job."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        text = self.cluster.call(
            SLURM + "/chain.sh",
            str(MOST_JOBS),
            "deck.toml",
            *SMALL,
            "--time=%d" % minutes,
            "--",
            *self.options(steps),
            "--set",
            "run.walltime_margin=%d seconds" % margin,
            cwd=self.folder
        )
        self.assertIn("%d of at most %d" % (MOST_JOBS, MOST_JOBS), text)
        self.wait_for_jobs()
        return [line.split("code=")[1] for line in self.chain_log("end")]

    def running(self, job):
        self.cluster.wait(
            lambda: harness.row_count(self.path("run"), "train") >= 3,
            PATIENCE,
            "job %s does not train" % job,
        )

    def test_the_signal_before_the_end(self):
        """--signal=B:USR1@300 signals only the script, which passes the signal on."""
        job = self.submit("--set", "run.stop=1000000 steps", "--set", "run.walltime=1 hours")
        self.running(job)
        self.cluster.call("scancel", "--batch", "--signal=USR1", job)
        self.wait_for_jobs()
        with open(self.path("run/exit.json")) as file:
            record = json.load(file)
        self.assertEqual(
            (record["code"], "SIGUSR1" in record["reason"]), (75, True), self.outputs()
        )
        self.assertEqual(self.cluster.job(job)["ExitCode"], "75:0")

    def test_a_killed_rank_is_a_lost_job_and_the_next_goes_on(self):
        self.cluster.call(
            SLURM + "/chain.sh",
            "2",
            "deck.toml",
            *SMALL,
            LONG,
            "--",
            "--set",
            "run.stop=60 steps",
            "--set",
            "run.walltime=1 hours",
            "--set",
            "checkpoint.every=10 steps",
            "--set",
            "checkpoint.async=false",
            cwd=self.folder,
            TRIREME=self.killed_once()
        )
        self.wait_for_jobs()
        codes = [line.split("code=")[1] for line in self.chain_log("end")]
        self.assertEqual(codes, ["lost", "0"], self.outputs())
        events = [row["event"] for row in harness.read_rows(self.path("run"), "event")]
        self.assertIn("restart", events)

    def killed_once(self):
        """Makes a program whose last rank is killed after the first checkpoint, once."""
        path = self.path("killed_once")
        with open(path, "w") as file:
            file.write("""#!/bin/bash
fault=()
[ "$1" != train ] || ls run/checkpoints/step_*.h5 >/dev/null 2>&1 || \\
  fault=(--allow-faults --set "debug.fault=kill rank 1 step 12")
exec "%s" "$@" "${fault[@]}"
""" % harness.TRIREME)
        os.chmod(path, 0o755)
        return path

    def test_the_64_nodes(self):
        def test_only(*options):
            return self.cluster.call(
                "sbatch",
                "--test-only",
                "--partition=big",
                *options,
                SLURM + "/train_64nodes.sh",
                "deck.toml",
                cwd=self.folder,
                check=False
            )

        # As typed in a tree; a site's partition is in the environment.
        literal = self.cluster.call(
            "sbatch",
            "--test-only",
            "slurm/train_64nodes.sh",
            cwd=os.path.dirname(SLURM),
            SBATCH_PARTITION="big",
        )
        self.assertRegex(literal, r"to start at .* using 4096 processors on nodes big\[00-63\]")
        accepted = test_only()
        self.assertRegex(accepted, r"to start at .* using 4096 processors on nodes big\[00-63\]")
        for option in ("--nodes=65", "--gpus-per-node=9", "--cpus-per-task=9"):
            self.assertIn(
                "Requested node configuration is not available", test_only(option), option
            )

    def test_doctor_in_a_job(self):
        """Ranks that srun connects, ranks that it does not connect, and the job script."""

        def doctor(*options):
            return self.cluster.call(
                "srun",
                "--ntasks=2",
                "--mem=1500",
                "--time=20",
                *options,
                harness.TRIREME,
                "doctor",
                "--bytes=1MiB",
                cwd=self.folder,
                check=False
            )

        text = doctor()
        self.assertRegex(text, r"(?m)^ok +launcher +2 ranks on 1 node, launcher: srun with PMI")
        self.assertRegex(text, r"(?m)^ok +time +Slurm job \d+: (19|20):\d\d left$")
        text = doctor("--mpi=none")
        self.assertRegex(
            text,
            r"(?m)^problem +launcher +srun started 2 processes, but MPI sees a world of 1\..*"
            r" Remedy: srun --mpi=list, then srun --mpi=pmix",
        )
        self.assertEqual(text.count("doctor: "), 1, text)
        self.cluster.environment["TRIREME_DOCTOR"] = "report"
        self.submit("--set", "run.stop=20 steps")
        del self.cluster.environment["TRIREME_DOCTOR"]
        self.wait_for_jobs()
        output = self.outputs()
        self.assertRegex(output, r"(?m)^ok +launcher +2 ranks on 1 node, launcher: srun with PMI")
        self.assertRegex(output, r"(?m)^(ok|warning) +folder +%s: " % re.escape(self.folder))
        self.assertTrue(os.path.exists(self.path("run/exit.json")), output)

    def test_a_comparison_that_is_a_task_of_srun_starts_its_ranks_with_srun(self):
        text = self.cluster.call(
            "srun",
            "--ntasks=1",
            "--cpus-per-task=2",
            "--mem=1500",
            "--time=20",
            sys.executable,
            "-c",
            COMPARISON,
            pathlib.Path(__file__).resolve().parents[2] / "scripts",
            harness.TRIREME,
            cwd=self.folder,
            MPIEXEC="srun",
        )
        self.assertRegex(text, r"(?m)^trained 2 \d+$")

    def test_the_job_script_without_a_deck(self):
        """In an installed tree, as typed. Its default deck has no data here: the job starts nothing
        and prints the commands. With a small deck in its place the job trains."""
        if not BUILD:
            self.skipTest("TRIREME_BUILD does not name the build folder")
        subprocess.run(
            [CMAKE, "--install", BUILD, "--prefix", self.path("tree")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        share = self.path("tree/share/trireme")
        recipe = pathlib.Path(share, "inputs/recipes/resnet50_large_batch.toml")

        def submit():
            job = self.cluster.call(
                "sbatch",
                "--parsable",
                "--nodes=1",
                "--ntasks-per-node=4",
                "--gpus-per-node=0",
                "slurm/train_64nodes.sh",
                cwd=share,
                TRIREME="",
            ).strip()
            self.wait_for_jobs()
            output = pathlib.Path(share, "trireme-%s.out" % job).read_text()
            return self.cluster.job(job)["ExitCode"], output

        code, output = submit()
        self.assertEqual(code, "2:0", output)
        self.assertIn("data.train = data/imagenet/train: no such folder", output)
        commands = [line for line in output.splitlines() if "trireme shard tar" in line]
        self.assertEqual(len(commands), 2, output)
        for line in commands:
            self.assertIn("# " + line, recipe.read_text().splitlines())
        self.assertNotIn("srun", output)

        recipe.write_text(DECK)
        os.symlink(self.shared, share + "/data")
        code, output = submit()
        self.assertEqual(code, "0:0", output)
        self.assertIn(
            "srun --kill-on-bad-exit=1 --gpu-bind=none %s/tree/bin/trireme train %s"
            % (self.folder, recipe),
            output,
        )
        rows = harness.last_by_step(harness.read_rows(share + "/run", "train"))
        self.assertEqual(rows.keys(), set(range(10, 21, 10)))
        with open(share + "/run/environment.json") as file:
            self.assertEqual(json.load(file)[-1]["ranks"], 4)


if __name__ == "__main__":
    unittest.main()
