"""Faults on purpose: ranks that are killed, stopped, slow, that compute nonsense or hold a flipped bit. Each ends with the right code and one clear line, and
the run's bits are in the end those of an undisturbed one."""

import json
import os
import re
import time
import unittest

import harness

STEPS = 20
LAST = "checkpoints/step_%09d.h5" % STEPS
ARGUMENTS = ("--set", "run.stop=%d steps" % STEPS, "--set", "evaluate.every=10 steps", "--set", "checkpoint.best=none")
PHASES = ("checkpoint-begin", "checkpoint-write", "checkpoint-close", "checkpoint-rename", "checkpoint-renamed", "checkpoint-rotate")
DEADLINE = 1.5  # seconds; grows with the ranks on a core


class Faults(harness.Case):
    samples = 320

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.digests = {}

    def run_with(self, fault, *more, ranks=2, timeout=60):
        """Runs the program with a fault. Returns the result and its seconds."""
        begin = time.monotonic()
        result = harness.run("train", "deck.toml", *ARGUMENTS, *more, "--allow-faults", "--set", "debug.fault=" + fault, ranks=ranks, cwd=self.folder, timeout=timeout)
        return result, time.monotonic() - begin

    def undisturbed(self):
        """The bits of a run without faults: the same at any number of data ranks."""
        if "whole" not in self.digests:
            self.train("--set", "run.folder=whole", *ARGUMENTS)
            self.digests["whole"] = harness.digest(self.path("whole", LAST))
        return self.digests["whole"]

    def exit_record(self):
        with open(self.path("run", "exit.json")) as file:
            return json.load(file)

    def events(self, name):
        return [row for row in harness.read_rows(self.path("run"), "event") if row["event"] == name]

    def assert_nothing_left(self):
        """No process of this test's folder is left behind."""
        deadline = time.monotonic() + 10
        while True:
            left = []
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if os.readlink("/proc/%s/cwd" % name).startswith(self.folder) and (harness.state_of(int(name)) or "Z")[0] not in "ZX":
                        left.append(name)
                except OSError:
                    pass
            if not left:
                return
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.05)

    def assert_goes_on(self, ranks=2):
        """The same command without the fault ends with the bits of a run that was never disturbed, and no temporary file is left."""
        self.train(*ARGUMENTS, ranks=ranks)
        self.assertEqual(harness.digest(self.path("run", LAST)), self.undisturbed())
        self.assertFalse([name for name in os.listdir(self.path("run/checkpoints")) if name.endswith(".tmp")])

    def test_faults_are_refused_unless_allowed(self):
        fault = ("--set", "debug.fault=kill rank 0 step 1")
        result = harness.run("train", "deck.toml", *fault, cwd=self.folder)
        if result.returncode == 2:  # a test build allows them
            self.assertIn("--allow-faults", result.text)
            self.assertFalse(os.path.exists(self.path("run")))
        for wrong in ("kill", "kill rank 1", "kil rank 1 step 2", "sleep rank 1 step 2", "kill rank 1 step 0", "kill rank 1 step 4..2", "kill rank 1 step 2 phase lunch", "kill rank 1 step 2 phase"):
            result = self.train("--allow-faults", "--set", "debug.fault=" + wrong, expect=2)
            self.assertIn("debug.fault", result.text)

    def test_a_rank_killed_in_a_step_is_the_end_of_all(self):
        for rank in (0, 3):
            result, _ = self.run_with("kill rank %d step 12" % rank, "--restart", "none", ranks=4 if rank else 2)
            self.assertNotIn(result.returncode, (0, 75), result.text)
            self.assert_nothing_left()
            self.assertFalse(os.path.exists(self.path("run", "exit.json")))
            self.assertIn(harness.checkpoints(self.path("run"))[-1], ("step_000000005.h5", "step_000000010.h5"))  # whether the second was in place in time
        self.assert_goes_on()

    def test_a_rank_killed_in_each_phase_of_a_checkpoint(self):
        for i, phase in enumerate(PHASES):
            rank = 0 if phase == "checkpoint-rotate" else i % 2  # only rank 0 rotates
            result, _ = self.run_with("kill rank %d step 10 phase %s" % (rank, phase), "--restart", "none", "--set", "checkpoint.keep=1")
            self.assertNotIn(result.returncode, (0, 75), result.text)
            self.assert_nothing_left()
            self.assertIn(harness.checkpoints(self.path("run"))[-1], ("step_000000005.h5", "step_000000010.h5"))
            self.assert_goes_on()

    def test_a_stopped_rank_is_named(self):
        for rank in (0, 1):
            result, seconds = self.run_with("stop rank %d step 12" % rank, "--set", "health.watchdog=%g seconds" % DEADLINE, "--restart", "none")
            self.assertEqual(result.returncode, 77, result.text)
            self.assertLess(seconds, 30)
            said = [line for line in result.text.splitlines() if line.startswith("error:")]
            self.assertEqual(len(said), 1, result.text)
            self.assertRegex(said[0], r"rank %d on \S+ gives no sign of life for \d" % rank)
            self.assertRegex(said[0], r"last known: step \d+, phase [a-z-]+")
            self.assert_nothing_left()
            record = self.exit_record()
            self.assertEqual((record["code"], record["step"]), (77, 11))
            self.assertIn("rank %d" % rank, record["reason"])
            self.assertIn(record["checkpoint"], harness.checkpoints(self.path("run")))
            self.assertIn("rank %d" % rank, self.events("rank_lost")[-1]["detail"])
            with open(self.path("run", "log.txt")) as file:
                self.assertIn("gives no sign of life", file.read())
        self.assert_goes_on()

    def test_a_rank_that_stands_still_though_its_signs_go_on_is_named_with_what_the_others_wait_for(self):
        result, _ = self.run_with("sleep 60 rank 1 step 12", "--set", "health.watchdog=%g seconds" % DEADLINE, ranks=4)
        self.assertEqual(result.returncode, 77, result.text)
        self.assertRegex(result.text, r"error: rank 1 on \S+ stands still for \d")
        self.assertRegex(result.text, r"rank 0 on \S+: last known: step 12, phase step; .* waiting: \S+ \d+ trireme/")
        self.assert_nothing_left()
        self.assertIn("rank 1", self.exit_record()["reason"])

    def test_a_slow_rank_is_named(self):
        result, _ = self.run_with("sleep 0.3 rank 1 step 6..20", "--set", "monitor.every=5 steps")
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(self.events("slow_rank")[-1]["detail"], r"rank 1 on \S+ is slow: busy for 0\.3\d* s")
        self.assertEqual([row["step"] for row in self.events("slow_rank")], [10, 15, 20])
        self.assertEqual(result.text.count("is slow"), 1, result.text)
        self.assertEqual(harness.digest(self.path("run", LAST)), self.undisturbed())

    def test_a_gradient_of_one_rank_that_is_not_a_number_is_skipped_by_all(self):
        result, _ = self.run_with("nan rank 1 step 7..8")
        self.assertEqual(result.returncode, 0, result.text)
        self.assertEqual([row["step"] for row in self.events("skipped_step")], [7, 8])
        self.assertEqual(result.text.count("is not finite"), 2, result.text)
        rows = harness.last_by_step(harness.read_rows(self.path("run"), "train"))
        self.assertIsNone(rows[7]["grad_norm"])
        self.assertIsNotNone(rows[9]["grad_norm"])
        skipped = json.loads(harness.run("inspect", "--json", self.path("run", LAST)).stdout)
        self.assertEqual(skipped["updates"], STEPS - 2)

    def test_many_bad_steps_roll_back_and_pass_over_the_data(self):
        result, _ = self.run_with("nan rank 0 step 12..14", "--set", "health.rollback_after=3")
        self.assertEqual(result.returncode, 0, result.text)
        self.assertEqual(len(self.events("rollback")), 1)
        self.assertIn("from step 14 to 10", self.events("rollback")[0]["detail"])
        rows = [row for row in harness.read_rows(self.path("run"), "train")]
        self.assertEqual([row["step"] for row in rows], list(range(1, 15)) + list(range(11, STEPS + 1)))
        self.assertAlmostEqual(rows[14]["epoch"] - rows[13]["epoch"], rows[1]["epoch"] - rows[0]["epoch"])  # the data did not go back

    def test_too_many_roll_backs_end_the_run(self):
        result, _ = self.run_with("nan rank 1 step 11..100", "--set", "health.rollback_after=2", "--set", "health.rollbacks=2", "--set", "run.stop=40 steps")
        self.assertEqual(result.returncode, 76, result.text)
        self.assertEqual(len(self.events("rollback")), 2)
        self.assertEqual(len(self.events("diverged")), 1)
        self.assertEqual(self.exit_record()["code"], 76)

    def test_a_flipped_bit_is_found_and_taken_back(self):
        result, _ = self.run_with("flip rank 2 step 13", "--set", "health.compare_replicas=2 steps", ranks=4)
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(result.text, r"replicas that should be alike differ at rank 2 on \S+: back from step 14 to 10")
        self.assertEqual(len(self.events("rollback")), 1)
        self.assertEqual(harness.digest(self.path("run", LAST)), self.undisturbed())

    def test_a_flipped_bit_without_a_checkpoint_ends_the_run(self):
        result, _ = self.run_with("flip rank 1 step 3", "--set", "health.compare_replicas=4 steps")
        self.assertEqual(result.returncode, 77, result.text)
        self.assertRegex(result.text, r"differ at rank 0 on \S+, rank 1 on")  # of two nobody can say which
        self.assertEqual(len(self.events("replicas_differ")), 1)
        self.assert_goes_on()


if __name__ == "__main__":
    unittest.main()
