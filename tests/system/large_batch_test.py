# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/large_batch_table.py: the plan, a study of seconds with the program, the documents.

The small study has the form of the published one.
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


def follow(chosen, accuracy):
    """Does all jobs of a study without training. `accuracy(action, run)` is the result of each.
    Returns the rows of the study, the jobs in their order, and the results."""
    rows, results, jobs = chosen.rows(), plan.Results(), []
    while job := plan.next_job(rows.values(), results):
        action, run = job
        jobs.append(job)
        name = "test" if action == "test" else "validation"
        results.add({"row": action, "key": run.key, name: accuracy(action, run), "steps": 1683})
    return rows, jobs, results


class Plan(unittest.TestCase):
    def test_every_row_has_six_tries_of_which_two_are_trained_to_the_end(self):
        rows, jobs, results = follow(study.FULL, lambda action, run: 0.9)
        for row in rows.values():
            self.assertTrue(row.is_complete(results), row.name)
            if len(row.tries) > 1:
                self.assertEqual(len({run.key for run in row.tries}), 6, row.name)
                full = [run for run in row.tries if run.key in results.train]
                self.assertEqual(len(full), 2, row.name)
        counts = collections.Counter((action, run.key) for action, run in jobs)
        self.assertEqual(set(counts.values()), {1})

    def test_the_large_batch_of_a_ramp_has_more_than_half_of_the_samples(self):
        for last in (study.FULL.large, study.FULL.largest):
            epoch, batch = study.FULL.ramp(last)[-1]
            self.assertEqual(batch, last)
            self.assertGreater(study.FULL.epochs - epoch, study.FULL.epochs / 2)

    def test_runs_have_one_key_if_and_only_if_they_have_one_deck(self):
        _, jobs, _ = follow(study.FULL, lambda action, run: 0.9)
        pairs = {(run.key, json.dumps(run.settings())) for _, run in jobs}
        self.assertEqual(len({key for key, _ in pairs}), len(pairs))
        self.assertEqual(len({deck for _, deck in pairs}), len(pairs))

    def test_validation_chooses_and_only_winners_see_the_test_set(self):
        row = study.FULL.rows()["4096, LARS, 1650 steps"]
        second, best = row.tries[1], row.tries[4]

        def accuracy(action, run):
            if action == "test":
                return 0.5
            values = (run.rate, run.trust, run.weight_decay)
            if values == (best.rate, best.trust, best.weight_decay):
                return 0.95 if action == "train" else 0.91
            return 0.92 if values == (second.rate, second.trust, second.weight_decay) else 0.9

        rows, jobs, results = follow(study.FULL, accuracy)
        row = rows[row.name]
        self.assertEqual({run.key for run in row.kept(results)}, {second.key, best.key})
        self.assertEqual(row.winner(results), best)
        tested = [r for action, r in jobs if action == "test" and r.stop == "1650 steps"]
        lars = [run for run in tested if run.kind == "lars"]
        self.assertEqual({run.key.rsplit("_", 1)[0] for run in lars}, {best.key.rsplit("_", 1)[0]})
        self.assertEqual(sorted(run.seed for run in lars), [1, 2, 3])

    def test_a_control_is_the_first_row_of_the_chosen_ramp(self):
        rows, _, results = follow(study.FULL, lambda action, run: 0.9)
        control = rows["control: first row of the ramp to 4096"].winner(results)
        ramp = rows["ramp to 4096, 30 epochs"].winner(results)
        self.assertEqual((control.rows, control.stop), (((0, 256),), "1683 steps"))
        self.assertEqual((control.rate, control.scaling), (ramp.rate, ramp.scaling))

    def test_a_diverged_run_is_never_chosen(self):
        rows, _, results = follow(
            study.FULL, lambda action, run: None if run.rate in (2.0, 0.1, 0.01) else 0.9
        )
        for row in rows.values():
            if len(row.tries) > 1:
                self.assertNotIn(row.winner(results).rate, (2.0, 0.1, 0.01), row.name)

    def test_a_quarter_has_the_schedule_of_the_whole(self):
        for row in study.FULL.rows().values():
            for run in row.tries:
                short, whole = run.settings(plan.QUARTER), run.settings()
                self.assertEqual(short["schedule.length"], whole["run.stop"])
                self.assertEqual(short["schedule.warmup"], whole["schedule.warmup"])
                self.assertLess(float(short["run.stop"].split()[0]), float(run.stop.split()[0]) / 2)


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
        self.page.write_text(
            text.replace("| time of the trainings | ", "| time of the trainings | 1", 1)
        )
        self.assertEqual(self.check().returncode, 1)


class SmallStudy(unittest.TestCase):
    def setUp(self):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        for split, samples, seed in (("train", 640, 1), ("validation", 200, 2), ("test", 200, 3)):
            harness.make_dataset(self.path("data", split), samples, classes=10, seed=seed, shards=1)
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
        self.assertNotIn(("train", stopped), [(row["row"], row["key"]) for row in self.rows()])

        # 3. The same command does the rest. Every run is started once, or twice if it goes on after
        #    its quarter; the stopped one once more.
        self.expect(self.start(), 0)
        rows = self.rows()
        counts = collections.Counter((row["row"], row["key"]) for row in rows)
        self.assertEqual(set(counts.values()), {1})
        trainings = collections.Counter(row["key"] for row in rows if row["row"] != "test")
        self.assertEqual(self.starts() - trainings, {stopped: 1})

        # 4. Nothing is missing, and another start trains nothing.
        starts, results = self.starts(), plan.Results(rows)
        for row in study.SMALL.rows().values():
            self.assertTrue(row.is_complete(results), row.name)
        self.expect(self.start(), 0)
        self.assertEqual(self.starts(), starts)
        self.assertEqual(self.expect(self.start("--missing"), 0).stdout, "")
        for row in study.SMALL.rows().values():
            for run in row.finals(results):
                if run.stop.endswith("steps"):
                    steps = results.train[run.key]["steps"]
                    self.assertEqual(steps, int(run.stop.split()[0]))

        # 5. A test whose checkpoint is lost trains its run again, with the same accuracy.
        lost = study.SMALL.rows()["128, Muon, 4 steps"].winner(results).key
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
        run = study.FULL.rows()["4096, Muon, 500 steps"].tries[0]
        checkpoints = program.folder(run) / "run/checkpoints"
        checkpoints.mkdir(parents=True)
        (checkpoints / "step_000000337.h5").touch()
        self.assertIsNone(program.test(run, 500))

    def test_mistakes_end_before_a_training(self):
        shutil.rmtree(self.path("data", "test"))
        result = self.expect(self.start(), 1)
        self.assertIn("scripts/quickstart.sh makes it", result.stderr)

    def test_rows_are_chosen_by_a_word_of_their_names(self):
        listed = self.expect(self.start("--missing", "--row", "Muon"), 0).stdout
        self.assertIn("128, Muon, 4 steps: not done; 3 jobs are known now", listed)
        self.assertNotIn("LARS", listed)
        refused = self.expect(self.start("--row", "Adam"), 1).stderr
        self.assertIn("--row Adam: no row has this word; the rows: 32, 5 epochs; ramp", refused)

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
