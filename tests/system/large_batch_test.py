# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/large_batch_table.py: the plan, a study of seconds with the program, the documents.

The small study has the form of the published one: grids, bars, table and curve.
"""

import collections
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/large_batch_table.py"
RESULTS = ROOT / "docs/figures/data/large_batch.jsonl"
sys.path.insert(0, str(ROOT / "scripts/large_batch"))
import plan  # noqa: E402
import study  # noqa: E402
import training  # noqa: E402


def follow(cells, accuracy):
    """Does all jobs of a study without training. `accuracy(action, run)` is the result of each.
    Returns the jobs in their order, and the results."""
    stages, results, jobs = cells.stages(), plan.Results(), []
    while job := plan.next_job(stages, results):
        action, run = job
        jobs.append(job)
        value = accuracy(action, run)
        name = "validation" if action == "train" else "test"
        results.add({"row": action, "key": run.key, name: value, "steps": 1})
    return jobs, results


class Plan(unittest.TestCase):
    def setUp(self):
        self.cells = study.Cells(study.FULL)

    def test_every_grid_of_a_table_has_the_same_size(self):
        sizes = {len(cell.candidates(None)) for cell in self.cells.table.values()}
        self.assertEqual(len(sizes), 1)
        s = study.FULL
        self.assertEqual({len(set(grid)) for grid in (s.sgd, s.lars, s.lamb)}, {8})
        self.assertGreaterEqual(len({rate for rate, _ in s.lars}), 4)
        self.assertGreaterEqual(len({trust for _, trust in s.lars}), 2)

    def test_bars_have_500_steps(self):
        for batch, epochs, _ in study.FULL.bars:
            self.assertGreaterEqual(50000 // batch * epochs, 500)

    def test_cells_that_are_the_same_run_share_it(self):
        s = study.FULL

        def keys(rule, batch):
            return {run.key for run in s.table_grid(rule, batch)}

        self.assertEqual(keys("base rate kept", s.base), keys("linear, no warm-up", s.base))
        # 0.05 times 16 is 0.2 times 4.
        self.assertEqual(len(keys("linear, warm-up", 4096) & keys("square root, warm-up", 4096)), 2)
        jobs, _ = follow(self.cells, lambda action, run: 0.9)
        counts = collections.Counter((action, run.key) for action, run in jobs)
        self.assertEqual(set(counts.values()), {1})

    def test_runs_have_one_key_if_and_only_if_they_have_one_deck(self):
        s = study.FULL
        runs = [run for _, run in follow(self.cells, lambda action, run: 0.9)[0]]
        runs += [run for rule in study.RULES for b in s.batches for run in s.table_grid(rule, b)]
        pairs = {(run.key, json.dumps(run.settings())) for run in runs}
        self.assertEqual(len({key for key, _ in pairs}), len(pairs))
        self.assertEqual(len({deck for _, deck in pairs}), len(pairs))

    def test_validation_chooses_and_only_winners_see_the_test_set(self):
        best = self.cells.bar["lars", 42].candidates(None)[5]

        def accuracy(action, run):
            if action == "test":
                return 0.5
            return 0.95 if run.trust == best.trust and run.rate == best.rate else 0.9

        jobs, results = follow(self.cells, accuracy)
        self.assertEqual(self.cells.bar["lars", 42].winner(results), best)
        tested = [run for action, run in jobs if action == "test"]
        lars = [run for run in tested if run.kind == "lars" and run.epochs == 42]
        self.assertEqual(
            {(run.rate, run.trust) for run in lars if run.batch == 4096}, {(best.rate, best.trust)}
        )
        self.assertEqual(sorted(run.seed for run in lars if run.batch == 4096), [1, 2, 3])

    def test_the_second_bar_is_tuned_again_only_if_it_is_missed(self):
        for lost, again in ((0.005, False), (0.02, True)):
            with self.subTest(lost):
                jobs, _ = follow(
                    study.Cells(study.FULL), lambda _, run: 0.9 - (lost if run.batch == 8192 else 0)
                )
                grid = [r for _, r in jobs if (r.batch, r.epochs, r.kind) == (8192, 84, "lars")]
                self.assertEqual(len({(run.rate, run.trust) for run in grid}) == 8, again)

    def test_a_diverged_run_is_never_chosen(self):
        _, results = follow(self.cells, lambda action, run: None if run.rate in (2.0, 0.1) else 0.9)
        self.assertNotEqual(self.cells.bar["lars", 42].winner(results).rate, 2.0)

    def test_nothing_is_missing_at_the_end(self):
        stages = self.cells.stages()
        self.assertGreater(sum(len(r) for _, r in plan.missing(stages, plan.Results())), 100)
        _, results = follow(self.cells, lambda action, run: 0.9)
        self.assertEqual([runs for _, runs in plan.missing(stages, results)], [[]] * len(stages))


class Documents(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.page = self.folder / "docs/guides/large_batch.md"
        self.page.parent.mkdir(parents=True)
        shutil.copy(ROOT / "docs/guides/large_batch.md", self.page)
        shutil.copy(RESULTS, self.folder / "results.jsonl")

    def check(self):
        words = ["--check", "--results", self.folder / "results.jsonl"]
        words += ["--documents", self.folder / "docs"]
        return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)

    def test_the_figures_of_the_page_are_those_of_the_results(self):
        result = self.check()
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_changed_result_is_noticed(self):
        rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
        first = next(row for row in rows if row["row"] == "test")
        first["test"] -= 0.01
        (self.folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = self.check()
        self.assertEqual(result.returncode, 1)
        self.assertIn("differs from the results", result.stderr)

    def test_a_changed_page_is_noticed(self):
        text = self.page.read_text()
        self.page.write_text(text.replace("| trainings | ", "| trainings | 1", 1))
        self.assertEqual(self.check().returncode, 1)


class SmallStudy(unittest.TestCase):
    def setUp(self):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        for split, samples, seed in (("train", 640, 1), ("validation", 200, 2), ("test", 200, 3)):
            harness.make_dataset(self.path("data", split), samples, seed=seed, shards=1)
        # Stands before the program: records each training, and stops the driver at the first
        # training after a file `stop` appeared.
        with open(self.path("program"), "w") as file:
            file.write(
                "#!/bin/sh\n"
                'if [ "$1" = train ]; then\n'
                '  echo "$2" >> "%s"\n'
                '  if rm "%s" 2>/dev/null; then kill -TERM $PPID; fi\n'
                "fi\n"
                'exec "%s" "$@"\n' % (self.path("starts"), self.path("stop"), harness.TRIREME)
            )
        os.chmod(self.path("program"), 0o755)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def start(self, *words, program="program", form="--small"):
        words = [form] * bool(form) + list(words)
        words += ["--trireme", self.path(program), "--data", self.path("data")]
        words += ["--work", self.path("work"), "--results", self.path("results.jsonl")]
        return subprocess.run(
            [sys.executable, SCRIPT, *words],
            capture_output=True,
            text=True,
            env=harness.environment(),
            timeout=harness.PATIENCE,
        )

    def rows(self):
        with open(self.path("results.jsonl")) as file:
            return [json.loads(line) for line in file]

    def starts(self):
        """Returns how often each training was started."""
        with open(self.path("starts")) as file:
            return collections.Counter(line.split("/")[-2] for line in file)

    def expect(self, result, code):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def test_a_study_that_is_stopped_and_resumed(self):
        # 1. Four jobs, then a row that a crash cut in the middle.
        self.expect(self.start("--limit", "4"), 0)
        before = self.rows()
        self.assertEqual(len(before), 4)
        with open(self.path("results.jsonl"), "a") as file:
            file.write('{"row": "tra')

        # 2. A signal stops the driver within a training.
        open(self.path("stop"), "w").close()
        result = self.expect(self.start(), 75)
        self.assertIn("stopped; the same command resumes it", result.stdout)
        self.assertEqual(self.rows()[:4], before)
        stopped = result.stdout.split(": stopped")[0].split()[-1]
        self.assertNotIn(stopped, [row["key"] for row in self.rows()])

        # 3. The same command does the rest. No other run is trained twice.
        self.expect(self.start(), 0)
        rows = self.rows()
        counts = collections.Counter((row["row"], row["key"]) for row in rows)
        self.assertEqual(set(counts.values()), {1})
        starts = self.starts()
        self.assertEqual({key for key, count in starts.items() if count > 1}, {stopped})
        trained = {row["key"] for row in rows if row["row"] == "train"}
        self.assertEqual(set(starts), trained)

        # 4. Nothing is missing, and another start trains nothing.
        cells, results = study.Cells(study.SMALL), plan.Results(rows)
        self.assertIsNone(plan.next_job(cells.stages(), results))
        self.expect(self.start(), 0)
        self.assertEqual(self.starts(), starts)
        self.assertIn("all: 0.0 h", self.expect(self.start("--missing"), 0).stdout)
        steps = {row["key"]: row["steps"] for row in rows if row["row"] == "train"}
        for cell in cells.table.values():
            for run in cell.finals(results):
                self.assertEqual(steps[run.key], 640 // run.batch * run.epochs)

        # 5. A test whose checkpoint is lost trains its run again, with the same accuracy.
        lost = cells.table["LARS", 32].winner(results).key
        test = [row for row in rows if (row["row"], row["key"]) == ("test", lost)]
        with open(self.path("results.jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows if row not in test)
        shutil.rmtree(self.path("work", "runs", lost))
        self.expect(self.start(), 0)
        self.assertEqual(self.starts()[lost], starts[lost] + 1)
        self.assertEqual(self.rows()[-1]["test"], test[0]["test"])

        # 6. The published study does not take results of another deck.
        result = self.expect(self.start(form=None), 1)
        self.assertIn("was made with another deck", result.stderr)

    def test_an_earlier_checkpoint_is_not_tested(self):
        program = training.Program(harness.TRIREME, self.path("data"), self.path("work"))
        run = study.FULL.sgd_run(256, 42, 0.1)
        checkpoints = program.folder(run) / "run/checkpoints"
        checkpoints.mkdir(parents=True)
        (checkpoints / "step_000000337.h5").touch()
        self.assertIsNone(program.test(run, 504))

    def test_mistakes_end_before_a_training(self):
        shutil.rmtree(self.path("data", "test"))
        result = self.expect(self.start(), 1)
        self.assertIn("scripts/quickstart.sh makes it", result.stderr)

    def test_a_stage_is_chosen_by_a_word_of_its_name(self):
        listed = self.expect(self.start("--missing", "--stage", "curve"), 0).stdout
        self.assertIn("curve: ", listed)
        self.assertNotIn("table: ", listed)
        refused = self.expect(self.start("--stage", "curves"), 1).stderr
        self.assertIn("--stage curves: no stage has this word; the stages: bar", refused)

    def test_a_second_driver_is_refused(self):
        os.mkdir(self.path("work"))
        with open(self.path("work", "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            result = self.expect(self.start(), 1)
        self.assertIn("another large_batch_table.py works here", result.stderr)

    def test_a_training_that_fails_ends_the_driver(self):
        with open(self.path("broken"), "w") as file:
            file.write('#!/bin/sh\n[ "$1" = --version ] || exit 2\n')
        os.chmod(self.path("broken"), 0o755)
        result = self.expect(self.start(program="broken"), 1)
        self.assertIn("training ended with 2", result.stderr)


if __name__ == "__main__":
    unittest.main()
