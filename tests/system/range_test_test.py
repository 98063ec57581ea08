# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme train --range-test`: the curve, the suggestion, and what it leaves behind."""

import csv
import json
import os
import signal
import xml.etree.ElementTree

import harness

RANGE = "1e-4:100:60"


class RangeTest(harness.Case):
    def curve(self, folder="run"):
        with open(self.path(folder, "range-test", "curve.csv"), encoding="utf-8") as file:
            return [(float(r["rate"]), float(r["loss"])) for r in csv.DictReader(file)]

    def exit_record(self):
        with open(self.path("run/range-test/exit.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_rates_grow_until_the_loss_diverges_and_one_is_suggested(self):
        self.train("--set", "run.stop=5 steps")
        before = harness.digest(self.path("run/checkpoints/step_000000005.h5"))
        text = self.train("--range-test", RANGE).text
        curve = self.curve()
        self.assertLess(len(curve), 60)
        for step, (rate, _) in enumerate(curve):
            self.assertAlmostEqual(rate / (1e-4 * 1e6 ** (step / 59)), 1, places=9)
        self.assertIn("the loss diverged at step %d" % len(curve), text)
        suggested = float(text.split("suggested: schedule.rate = ")[1].split(",")[0])
        stops = float(text.split("it stops falling at ")[1].split(",")[0])
        self.assertTrue(1e-3 < suggested < stops < curve[-1][0], text)
        self.assertEqual(
            (self.exit_record()["code"], self.exit_record()["reason"]), (0, "the loss diverged")
        )
        picture = self.path("run/range-test/curve.svg")
        self.assertIn("schedule.rate", xml.etree.ElementTree.parse(picture).getroot()[3].text)
        # It leaves no checkpoint, and the run as it was.
        self.assertEqual(os.listdir(self.path("run/range-test/checkpoints")), [])
        last = self.path("run/checkpoints/step_000000005.h5")
        self.assertEqual(harness.digest(last), before)
        self.assertEqual(harness.row_count(self.path("run"), "train"), 5)
        # The deck of the test is a deck.
        check = harness.run("check", "run/range-test/deck.toml", cwd=self.folder)
        self.assertEqual(check.returncode, 0, check.text)
        # The suggestion is a key of the deck.
        self.train("--set", "run.folder=then", "--set", "schedule.rate=%g" % suggested)

    def test_two_ranks_have_the_same_curve_and_the_deck_limits_nothing(self):
        words = ("--range-test", "1e-3:1:12", "--set", "health.spike_ratio=1.1")
        words += ("--set", "health.spike_warn=1", "--set", "run.stop=5 steps")
        self.train(*words)
        one = self.curve()
        self.assertEqual(len(one), 12)
        self.train(*words, "--set", "run.folder=two", ranks=2)
        self.assertEqual(self.curve("two"), one)

    def test_every_way_to_synchronize(self):
        for n, sync in enumerate(("delayed", "every 2 steps")):
            folder = "run-%d" % n
            words = ("--set", 'parallel.sync="%s"' % sync, "--set", "run.folder=" + folder)
            words += ("--set", "evaluate.every=4 steps", "--set", "checkpoint.every=4 steps")
            self.train("--range-test", "1e-3:1:8", *words, ranks=2)
            self.assertEqual(len(self.curve(folder)), 8)

    def test_the_rate_of_the_deck_is_the_one_before_scaling(self):
        words = ("--set", "schedule.scaling=linear", "--set", "schedule.base_batch=16")
        text = self.train("--range-test", RANGE, *words).text
        unscaled = float(text.split("suggested: schedule.rate = ")[1].split(" ")[0])
        scaled = float(text.split("(scaled to ")[1].split(")")[0])
        self.assertAlmostEqual(scaled / unscaled, 4, delta=0.4)

    def test_a_loss_that_never_falls_suggests_nothing(self):
        text = self.train("--range-test", "1e-12:2e-12:9").text
        self.assertNotIn("suggested:", text)
        self.assertIn("no rate is suggested; try higher rates or more steps", text)
        text = self.train("--range-test", "1e3:1e4:9").text
        self.assertNotIn("suggested:", text)
        self.assertIn("no rate is suggested; try lower rates", text)

    def test_a_signal_ends_it_with_75(self):
        words = ("train", "deck.toml", "--range-test", "1e-5:1e-4:1000000")
        process = harness.start(*words, cwd=self.folder)
        log = self.path("run/range-test/log.txt")
        harness.wait_for(
            lambda: os.path.exists(log) and "range test: 1000000 steps" in open(log).read(),
            "the first step",
        )
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(process.returncode, 75, text)
        self.assertEqual(self.exit_record()["code"], 75)
        self.assertEqual(len(self.curve()), self.exit_record()["step"])

    def test_the_wall_time_and_the_stop_file_end_it(self):
        words = ("--range-test", "1e-9:1e-8:1000000")
        limits = ("--set", "run.walltime=3 seconds", "--set", "run.walltime_margin=1 second")
        text = self.train(*words, *limits, expect=75).text
        self.assertIn("(run.walltime); the curve so far is written", text)
        self.assertGreater(len(self.curve()), 1)
        with open(self.path("run/range-test/STOP"), "w"):
            pass
        text = self.train(*words, expect=75).text
        self.assertIn("stopped at step 1 (STOP file); the curve so far is written", text)
        self.assertEqual(len(self.curve()), 1)

    def test_wrong_values_are_refused(self):
        for value in ("", "1", "1e-5:10", "1e-5:10:2", "10:1:200", "0:1:9", "-1:1:9", "1:2:3:4",
                      "nan:1:9", "1e-320:1:20", "1:1e31:9", "1:inf:9", "1e-5:10:2.5",
                      "1e-5:10:200 "):  # fmt: skip
            text = self.train("--range-test", value, expect=2).text
            self.assertIn("must be LOW:HIGH:STEPS", text)
            self.assertIn("as in 1e-5:10:200", text)
        text = self.train("--range-test", RANGE, "--restart", "required", expect=2).text
        self.assertIn("--range-test begins with initial weights; leave --restart out", text)
        text = self.train("--range-test", RANGE, "--set", "data.train=none", expect=2).text
        self.assertIn("no such folder", text)
        self.assertFalse(os.path.exists(self.path("run")))
        # The lease cannot be taken: the start removes what it made, and nothing else.
        os.makedirs(self.path("run/range-test/run.lock"))
        self.train("--range-test", RANGE, expect=2)
        self.assertEqual(os.listdir(self.path("run/range-test")), ["run.lock"])

    def test_what_is_in_the_way_is_refused_before_the_work(self):
        for name in ("curve.csv", "curve.svg"):
            os.makedirs(self.path("run/range-test", name))
            text = self.train("--range-test", RANGE, expect=2).text
            self.assertIn("run/range-test/%s: is a folder" % name, text)
            self.assertIn("move it away, or set another run.folder", text)
            self.assertEqual(os.listdir(self.path("run/range-test")), [name])
            os.rmdir(self.path("run/range-test", name))
        checkpoints = self.path("run/range-test/checkpoints")
        for name in ("step_000000005.h5", "best.h5"):
            os.makedirs(checkpoints, exist_ok=True)
            with open(os.path.join(checkpoints, name), "w"):
                pass
            text = self.train("--range-test", RANGE, expect=2).text
            self.assertIn("run/range-test/checkpoints: holds checkpoints of a training", text)
            self.assertEqual(os.listdir(checkpoints), [name])
            os.remove(os.path.join(checkpoints, name))


if __name__ == "__main__":
    harness.main(at_once=2)
