# SPDX-License-Identifier: Apache-2.0
"""Tests a run folder whose files are removed or replaced while the run goes on.

Records are opened anew. A removed lease is created again, and a job that has lost its lease to
another one writes nothing more. exit.json names the newest checkpoint after the launcher is killed.
"""

import json
import os
import shutil
import time
import unittest

import harness
from short_run import ARGUMENTS, STEPS

RECORDS = ("metrics.jsonl", "log.txt", "tensorboard")
SLOW = ("--allow-faults", "--set", "debug.fault=sleep 0.02 rank 0 step 1..1000000")
ENDLESS = (
    "--set",
    "run.stop=1000000 steps",
    "--set",
    "monitor.every=1 steps",
    "--set",
    "monitor.tensorboard=true",
    "--set",
    "evaluate.every=1000 steps",
)


class RunFolder(harness.Case):
    samples = 320

    def start(self, *more, ranks=2):
        return harness.start("train", "deck.toml", *more, ranks=ranks, cwd=self.folder)

    def wait_for_rows(self, process, count, kind="train"):
        harness.wait_for(
            lambda: process.poll() is not None
            or harness.row_count(self.path("run"), kind) >= count,
            "%d rows" % count,
        )
        self.assertIsNone(process.poll())

    def end(self, process):
        """Asks a run for its end and returns its output."""
        open(self.path("run", "STOP"), "w").close()
        text, _ = process.communicate(timeout=harness.PATIENCE)
        os.remove(self.path("run", "STOP"))
        self.assertEqual(process.returncode, 75, text)
        return text

    def test_a_folder_that_no_run_can_have_is_refused_before_it_is_made(self):
        data = self.path("data/train")
        before = sorted(os.listdir(data))
        for folder, saying in (
            ("data/train", "is also the folder of data.train"),
            ("./data//train/", "is also the folder of data.train"),
            ("x" * 300, "File name too long"),
            ("y/" * 2500, "File name too long"),
        ):
            for command in ("check", "train"):
                result = harness.run(
                    *(command, "deck.toml", "--set", "run.folder=" + folder), cwd=self.folder
                )
                self.assertEqual(result.returncode, 2, result.text)
                self.assertIn(saying, result.text)
        self.assertEqual(sorted(os.listdir(data)), before)

    def exit_record(self):
        with open(self.path("run", "exit.json")) as file:
            return json.load(file)

    def contents_of_run(self):
        """Returns the bytes of each file of the run folder."""
        found = {}
        for folder, _, names in os.walk(self.path("run")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    found[os.path.relpath(os.path.join(folder, name), self.path("run"))] = (
                        file.read()
                    )
        return found

    def lose_records(self, lose, every):
        """Takes each record away by `lose` and returns the output of the run."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        process = self.start(*ENDLESS, "--set", "checkpoint.every=%d steps" % every, *SLOW)
        try:
            self.wait_for_rows(process, 5)
            for name in RECORDS:
                lose(self.path("run", name))
                harness.wait_for(
                    lambda: process.poll() is not None or os.path.exists(self.path("run", name)),
                    name + " again",
                )
            harness.wait_for(
                lambda: len(self.reopened()) >= 2 and os.listdir(self.path("run/tensorboard")),
                "the events",
            )
            return self.end(process)
        finally:
            process.kill()

    def reopened(self):
        return [
            row["detail"]
            for row in harness.rows_so_far(self.path("run"), "event")
            if row["event"] == "file_reopened"
        ]

    def test_removed_records_are_opened_anew(self):
        def remove(path):
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

        # At the next checkpoint, and without one.
        for every in (20, 1000000):
            text = self.lose_records(remove, every)
            for name in RECORDS:
                self.assertRegex(text, r"warning: .*%s.* was removed or replaced" % name)
            self.assertEqual(len(self.reopened()), 3)
            self.assertTrue(os.listdir(self.path("run/tensorboard")))
            steps = [row["step"] for row in harness.read_rows(self.path("run"), "train")]
            self.assertEqual(steps, list(range(steps[0], steps[-1] + 1)), "none is missing since")
            with open(self.path("run/log.txt")) as file:
                self.assertIn("stopped at step %d" % steps[-1], file.read())

    def test_renamed_records_are_opened_anew(self):
        text = self.lose_records(lambda path: os.rename(path, path + ".old"), 50)
        self.assertEqual(text.count("was removed or replaced"), 3, text)
        with open(self.path("run/metrics.jsonl.old")) as file:
            before = [json.loads(line) for line in file]
        last = max(row["step"] for row in before if row["kind"] == "train")
        after = [row["step"] for row in harness.read_rows(self.path("run"), "train")]
        self.assertEqual(after[0], last + 1)

    def test_a_record_that_cannot_be_opened_anew_is_warned_of_once(self):
        process = self.start(*ENDLESS, *SLOW)
        try:
            self.wait_for_rows(process, 3)
            os.rename(self.path("run/metrics.jsonl"), self.path("run/old"))
            os.mkdir(self.path("run/metrics.jsonl"))
            os.remove(self.path("run/log.txt"))
            harness.wait_for(
                lambda: process.poll() is not None or os.path.exists(self.path("run/log.txt")),
                "the log again",
            )
            time.sleep(3)  # some more looks for removed files
            text = self.end(process)
        finally:
            process.kill()
        self.assertEqual(text.count("cannot be opened anew"), 1, text)
        self.assertIn("log.txt was removed or replaced", text)

    def test_a_removed_folder_of_checkpoints_is_created_anew(self):
        for way in ("true", "false"):
            with self.subTest(asynchronous=way):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                more = ("--set", "checkpoint.every=10 steps", "--set", "checkpoint.async=" + way)
                process = self.start(*ENDLESS, *more, *SLOW)
                try:
                    for _ in range(2):
                        harness.wait_for(
                            lambda: process.poll() is not None
                            or os.path.exists(self.path("run/checkpoints"))
                            and harness.checkpoints(self.path("run")),
                            "a checkpoint",
                        )
                        os.rename(self.path("run/checkpoints"), self.path("lost"))
                        shutil.rmtree(self.path("lost"))
                    text = self.end(process)
                finally:
                    process.kill()
                self.assertRegex(text, r"warning: .*/checkpoints was removed while the run goes on")
                events = harness.read_rows(self.path("run"), "event")
                names = [row["event"] for row in events]
                self.assertEqual(names.count("folder_recreated"), 2, names)
                self.assertGreater(len(harness.checkpoints(self.path("run"))), 0)

    def test_a_stop_after_the_folder_of_checkpoints_was_removed_writes_one(self):
        process = self.start(*ENDLESS, "--set", "checkpoint.every=1000000 steps", *SLOW)
        try:
            self.wait_for_rows(process, 3)
            shutil.rmtree(self.path("run/checkpoints"))
            self.end(process)
        finally:
            process.kill()
        self.assertEqual(len(harness.checkpoints(self.path("run"))), 1)

    def test_a_removed_lease_is_created_again_and_keeps_others_out(self):
        process = self.start(*ENDLESS, *SLOW)
        try:
            self.wait_for_rows(process, 3)
            os.remove(self.path("run/run.lock"))
            result = harness.run("train", "deck.toml", *ENDLESS, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("is in use by process", result.text)
            text = self.end(process)
        finally:
            process.kill()
        self.assertIn("run.lock: was removed; this job has created it again", text)
        steps = [row["step"] for row in harness.read_rows(self.path("run"), "train")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), "one job has written")

    def lose_lease(self, ranks, second_ends):
        """Stops a job and removes its lease. A second job takes the folder. Then the first job
        continues, and must not write."""
        shutil.rmtree(self.path("run"), ignore_errors=True)
        # No checkpoint is being written: a thread that is in a system call cannot be held back.
        rare = ("--set", "checkpoint.every=5 minutes")
        first, _, held = self.start_held(*ARGUMENTS, *rare, ranks=ranks)
        os.remove(self.path("run/run.lock"))
        if second_ends:
            self.train(*ARGUMENTS, "--set", "run.stop=40 steps")
            before = self.contents_of_run()
        else:
            second = self.start(*ENDLESS, ranks=1)
            self.wait_for_rows(second, 60)
        text = harness.end_of(first, held)
        self.assertEqual(first.returncode, 1, text)
        self.assertRegex(text, "this job's lease was")
        if second_ends:
            now = self.contents_of_run()
            self.assertEqual(sorted(now), sorted(before))
            self.assertEqual([name for name in now if now[name] != before[name]], [])
            self.assertEqual(self.exit_record()["code"], 0)
        else:
            self.assertFalse(os.path.exists(self.path("run", "exit.json")))
            self.assertNotIn("this job's lease was", self.end(second))
            with open(self.path("run/log.txt")) as file:
                self.assertNotIn("this job's lease was", file.read())
            rows = harness.read_rows(self.path("run"), "train")
            begin = max(i for i, row in enumerate(rows) if row["step"] == 1)
            steps = [row["step"] for row in rows[begin:]]
            self.assertEqual(steps, list(range(steps[0], steps[0] + len(steps))))

    def test_a_job_without_its_lease_writes_nothing_more(self):
        for ranks in (1, 2):
            for second_ends in (False, True):
                with self.subTest(ranks=ranks, second_ends=second_ends):
                    self.lose_lease(ranks, second_ends)

    def test_the_newest_checkpoint_is_named_after_the_launcher_is_killed(self):
        for steps in (1, 3, 7):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            process = self.start(
                *ENDLESS,
                "--set",
                "checkpoint.every=%d steps" % steps,
                "--set",
                "monitor.every=1" " steps",
                ranks=4
            )
            self.wait_for_rows(process, 3, "checkpoint")
            process.kill()
            process.communicate(timeout=harness.PATIENCE)
            harness.wait_for(lambda: not harness.processes_in(self.folder), "all processes gone")
            # Open MPI 4 may end its ranks before they notice.
            if os.path.exists(self.path("run", "exit.json")):
                record = self.exit_record()
                self.assertEqual(record["code"], 77)
                self.assertEqual(
                    record["checkpoint"], harness.checkpoints(self.path("run"))[-1], record
                )
                trained = harness.read_rows(self.path("run"), "train")[-1]["step"]
                self.assertLessEqual(trained, record["step"] + 1)


if __name__ == "__main__":
    unittest.main()
