# SPDX-License-Identifier: Apache-2.0
"""Tests `batch.ramp`: the steps and rates of its rows, restarts, layouts, rollbacks and `check`."""

import json
import os
import signal
import xml.etree.ElementTree

import harness

# 640 samples. The rows begin after steps 4 (128 samples) and 7 (320); the run ends after step 12.
RAMP = '[["0 epochs", 32], ["0.2 epochs", 64], ["320 samples", 128]]'
BATCHES = [32] * 4 + [64] * 3 + [128] * 5
STEPS = len(BATCHES)
LAST = "checkpoints/step_%09d.h5" % STEPS


class Ramp(harness.Case):
    def setUp(self):
        super().setUp()
        text = harness.DECK.replace('test = "data/test"\n', "")
        self.plain = text.replace('stop = "20 steps"', 'stop = "1.5 epochs"')
        self.plain = self.plain.replace('every = "5 steps"', 'every = "1 step"')
        self.write_deck(self.plain.replace("global = 64", "ramp = " + RAMP))

    def words(self, folder="run", **settings):
        words = ["--set", "run.folder=" + folder]
        for key, value in settings.items():
            words += ["--set", "%s=%s" % (key.replace("__", "."), value)]
        return words

    def digest(self, folder, step=STEPS):
        return harness.digest(self.path(folder, "checkpoints/step_%09d.h5" % step))

    def events(self, folder, name):
        rows = harness.read_rows(self.path(folder), "event")
        return [(row["step"], row["detail"]) for row in rows if row["event"] == name]

    def test_a_row_begins_at_the_first_step_past_its_mark(self):
        words = self.words(schedule__scaling="linear", schedule__base_batch=32)
        text = self.train(*words).text
        self.assertIn(
            "ramp: 32 samples to step 4, then 64 samples to step 7, then 128 samples", text
        )
        rows = harness.last_by_step(harness.read_rows(self.path("run"), "train"))
        self.assertEqual(sorted(rows), list(range(1, STEPS + 1)))
        # Warm-up over 5 steps: 192 samples. Then a cosine over the other 768.
        warm_up, whole, done = 192, 960, 0
        for step, batch in enumerate(BATCHES, 1):
            peak, done = 0.1 * batch / 32, done + batch
            self.assertEqual(rows[step]["samples"], done)
            self.assertAlmostEqual(rows[step]["epoch"], done / 640, places=9)
            if step <= 5:
                self.assertAlmostEqual(rows[step]["rate"], peak * done / warm_up, places=12)
            if step == 6:
                self.assertAlmostEqual(rows[step]["rate"], peak, places=12)
        self.assertEqual(done, whole)
        # Epoch 1 ends with step 9 (576) + 128 = 704: evaluations and checkpoints are of all steps.
        self.assertEqual(
            self.events("run", "batch"),
            [(4, "64 samples a step from step 5"), (7, "128 samples a step from step 8")],
        )
        self.assertEqual(self.events("run", "restart"), [])
        self.assertEqual(len(self.events("run", "start")), 1)

    def test_intervals_of_epochs_and_samples_count_samples(self):
        words = self.words(evaluate__every="0.5 epochs", checkpoint__every="300 samples")
        words += self.words(checkpoint__keep=10)
        self.train(*words)
        rows = harness.read_rows(self.path("run"), "evaluate")
        # 320 samples after step 7, 640 within step 10 (704), 960 after step 12.
        self.assertEqual([row["step"] for row in rows], [7, 10, 12])
        # 300 within step 7, 600 within step 10, 900 within step 12; the ends of rows 1 and 2.
        self.assertEqual(
            harness.checkpoints(self.path("run")),
            ["step_%09d.h5" % step for step in (4, 7, 10, 12)],
        )

    def test_rows_equal_starts_of_other_batches(self):
        """Each row as a start of its own, which a restart continues with another batch."""
        constant = {"schedule__kind": "constant", "schedule__warmup": "none"}
        constant["data__drop_last"] = "false"
        self.train(*self.words(**constant))
        self.write_deck(self.plain)
        for batch, stop in ((32, 4), (64, 7), (128, 12)):
            words = self.words("parts", run__stop="%d steps" % stop, batch__global=batch)
            self.train(*words, *self.words("parts", **constant))
        self.assertEqual(self.digest("parts"), self.digest("run"))

    def test_a_run_killed_in_any_row_has_the_bits_of_the_undisturbed_one(self):
        self.train(*self.words())
        expected = self.digest("run")
        for step in (2, 5, 7, 8, 11):
            folder = "killed%d" % step
            fault = ["--allow-faults", "--set", "debug.fault=kill rank 0 step %d" % step]
            killed = harness.run("train", "deck.toml", *self.words(folder), *fault, cwd=self.folder)
            self.assertEqual(killed.returncode, -signal.SIGKILL, killed.text)
            self.train(*self.words(folder))
            self.assertEqual(self.digest(folder), expected, step)
            self.assertEqual(
                harness.losses(self.path(folder)), harness.losses(self.path("run")), step
            )
        # Another start from a checkpoint of the last row, in a folder of its own.
        given = self.path("run/checkpoints/step_%09d.h5" % 10)
        self.train(*self.words("given"), "--restart", given)
        self.assertEqual(self.digest("given"), expected)
        # Nothing is left to do.
        self.assertIn("nothing to do", self.train(*self.words()).text)

    def test_layouts_agree(self):
        self.train(*self.words())
        expected = harness.losses(self.path("run"))
        self.train(*self.words("two"), ranks=2)
        self.assertEqual(harness.losses(self.path("two")), expected)
        words = self.words("stages", parallel__pipeline=2)
        self.train(*words, ranks=2)
        for step, (a, b) in enumerate(
            zip(expected, harness.losses(self.path("stages")), strict=True), 1
        ):
            self.assertLess(abs(a - b), 1e-5 * abs(a), step)
        # On a device, with memory of its own for each row.
        words = self.words("emulated", debug__device="emulated")
        self.train("--allow-faults", *words, ranks=2)
        self.assertEqual(len(harness.losses(self.path("emulated"))), STEPS)

    def test_a_rollback_can_lead_to_an_earlier_row(self):
        words = self.words(checkpoint__every="3 steps", health__rollback_after=2)
        fault = "stop rank 0 step 6; nan rank 0 step 5..6"
        process, pid = self.start_until_stopped("run", fault, words)
        # The checkpoint of the end of row 1 is lost. That of step 3 is in row 1.
        os.remove(self.path("run/checkpoints/step_%09d.h5" % 4))
        text = harness.end_of(process, pid)
        self.assertEqual(process.returncode, 0, text)
        self.assertIn("rolled back from step 6 to 3", text)
        rows = harness.read_rows(self.path("run"), "train")
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5, 6, *range(4, STEPS + 1)])
        batches = [b["samples"] - a["samples"] for a, b in zip(rows[5:], rows[6:])]
        self.assertEqual(batches[1:], BATCHES[4:])
        self.assertEqual([step for step, _ in self.events("run", "batch")], [4, 3, 4, 7])

    def test_a_skipped_last_step_of_a_row_is_no_place_to_roll_back_to(self):
        """The row ends with a checkpoint all the same, and step 3 is kept although keep = 1."""
        words = self.words(checkpoint__every="3 steps", checkpoint__keep=1)
        words += self.words(health__rollback_after=2, debug__fault="nan rank 0 step 4..5")
        text = self.train("--allow-faults", *words).text
        self.assertIn("rolled back from step 5 to 3", text)
        self.assertRegex(text, r"step_000000004.h5 was renamed to step_000000004.h5.failed: its")
        rows = harness.read_rows(self.path("run"), "train")
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5, *range(4, STEPS + 1)])
        self.assertEqual([step for step, _ in self.events("run", "batch")], [4, 3, 4, 7])
        self.assertEqual(harness.checkpoints(self.path("run")), [os.path.basename(LAST)])

    def start_until_stopped(self, folder, fault, more=()):
        """Starts a run whose rank 0 stops itself; returns process and pid of the rank."""
        words = [*self.words(folder, debug__fault=fault), *more]
        process = harness.start("train", "deck.toml", *words, "--allow-faults", cwd=self.folder)
        pid = harness.ranks_of(process)[0]
        harness.wait_for(
            lambda: (harness.state_of(pid) or "?")[0] == "T" or process.poll() is not None,
            "a rank that stopped itself",
        )
        return process, pid

    def test_a_signal_at_the_end_of_a_row(self):
        """It comes in step 3 or 4, so that the run stops after step 4 or 5."""
        self.train(*self.words())
        for step in (3, 4):
            folder = "signal%d" % step
            process, pid = self.start_until_stopped(folder, "stop rank 0 step %d" % step)
            os.kill(pid, signal.SIGTERM)
            text = harness.end_of(process, pid)
            self.assertEqual(process.returncode, 75, text)
            self.assertIn("stopped at step %d" % (step + 1), text)
            self.train(*self.words(folder))
            self.assertEqual(self.digest(folder), self.digest("run"), step)

    def test_checkpoints_noise_and_groups_continue_over_rows(self):
        """A thread writes the checkpoints of one run, the main thread those of a killed one."""
        groups = '[{ match = "layer1.*", frozen = true }, { match = "fc.*", rate_ratio = 2 }]'
        words = {"monitor__noise_scale": "2 steps", "optimizer__groups": groups}
        words |= {"checkpoint__keep": STEPS, "checkpoint__async": "true"}
        self.train(*self.words(**words))
        words["checkpoint__async"] = "false"
        fault = ["--allow-faults", *self.words("killed", debug__fault="kill rank 0 step 8")]
        killed = harness.run(
            "train", "deck.toml", *self.words("killed", **words), *fault, cwd=self.folder
        )
        self.assertEqual(killed.returncode, -signal.SIGKILL, killed.text)
        self.train(*self.words("killed", **words))
        for step in range(1, STEPS + 1):
            self.assertEqual(self.digest("killed", step), self.digest("run", step), step)
        noise, again = (
            harness.last_by_step(harness.read_rows(self.path(folder), "noise"))
            for folder in ("run", "killed")
        )
        for key in ("noise_scale", "trace", "measurements"):
            found = [{step: row[key] for step, row in rows.items()} for rows in (noise, again)]
            self.assertEqual(found[0], found[1], key)
        self.assertEqual([noise[step]["measurements"] for step in (2, 4, 8, 12)], [1, 2, 4, 6])

    def test_a_run_that_time_ends_passes_its_rows(self):
        self.write_deck(
            self.plain.replace("global = 64", 'ramp = [["0 steps", 32], ["2 steps", 64]]')
        )
        words = self.words(
            run__stop="5 seconds", schedule__kind="constant", schedule__warmup="none"
        )
        # The third step takes most of the time.
        sleep = ["--allow-faults", *self.words(debug__fault="sleep 4 rank 0 step 3")]
        self.train(*words, *sleep)
        rows = harness.read_rows(self.path("run"), "train")
        batches = [b["samples"] - a["samples"] for a, b in zip([{"samples": 0}] + rows, rows)]
        self.assertGreater(len(batches), 2)
        self.assertEqual(batches, [32] * 2 + [64] * (len(batches) - 2))
        self.assertEqual(self.events("run", "batch"), [(2, "64 samples a step from step 3")])
        self.assertIn("nothing to do", self.train(*words, *sleep).text)

    def test_a_rank_that_hangs_between_two_rows_is_found(self):
        words = self.words(debug__fault="sleep 3600 rank 1 step 4 phase row")
        words += self.words(health__watchdog="2 seconds")
        text = self.train("--allow-faults", *words, ranks=2, expect=77).text
        self.assertRegex(
            text, r"rank 1 on \S+ stalled for \d+\.\d s \(last known: step 4, phase row\)"
        )

    def test_check_shows_and_draws_the_rows(self):
        assume = ("--assume", "images:640,12x12x1,5")
        result = harness.run(
            "check", "deck.toml", *assume, "--schedule", "plot.svg", cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("plot.svg: the learning rate, batch of 12 steps", result.text)
        with open(self.path("plot.svg"), encoding="utf-8") as file:
            drawn = file.read()
        xml.etree.ElementTree.fromstring(drawn)
        self.assertIn("samples a step", drawn)
        result = harness.run("check", "deck.toml", "--json", *assume, cwd=self.folder)
        report = json.loads(result.stdout)
        self.assertEqual(
            report["ramp"]["rows"],
            [
                {"first_step": 1, "samples": 32, "micro_batches": 2},
                {"first_step": 5, "samples": 64, "micro_batches": 4},
                {"first_step": 8, "samples": 128, "micro_batches": 8},
            ],
        )
        self.assertEqual(report["stop"]["steps"], STEPS)
        # Every row must fit the ranks, before anything starts.
        result = harness.run("check", "deck.toml", "--ranks", "4", *assume, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("batch.ramp: its row of 32 samples: a step of 32 samples is not", result.text)

    def test_a_range_test_uses_the_first_row(self):
        words = ("--range-test", "1e-4:1:6")
        self.assertIn("step: 32 samples", self.train(*words).text)


if __name__ == "__main__":
    harness.main(at_once=2)
