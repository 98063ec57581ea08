# SPDX-License-Identifier: Apache-2.0
"""Tests parallel.sync = "delayed" and "every n steps".

Layouts and restarts do not change the numbers. Some actions wait for the next step that averages
the ranks.
"""

import json
import os
import shutil
import signal
import tempfile
import unittest

import harness

DELAYED = {"sync": "delayed"}
PERIODIC = {"sync": "every 4 steps", "outer_momentum": 0.5}

# The run is ended by a STOP file or a signal, never by its last step.
LONG = (
    "--set",
    "run.stop=4000 steps",
    "--set",
    "evaluate.every=1000 steps",
    "--set",
    "checkpoint.every=1000 steps",
    "--set",
    "checkpoint.best=none",
)


class Sync(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.shared = tempfile.mkdtemp(prefix="trireme-test-")
        harness.make_text(cls.shared + "/text")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared, ignore_errors=True)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        os.symlink(self.shared + "/text", self.folder + "/text")
        with open(self.folder + "/deck.toml", "w") as file:
            file.write(harness.GPT_DECK)

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def arguments(self, folder, parallel, more):
        settings = ["--set", "run.folder=" + folder]
        for key, value in parallel.items():
            settings += ["--set", "parallel.%s=%s" % (key, value)]
        return ["train", "deck.toml", *settings, *more]

    def train(self, folder, parallel, *more, ranks=1, expect=0):
        result = harness.run(*self.arguments(folder, parallel, more), ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result

    def steps(self, folder, kind, key="step"):
        return [
            row[key]
            for row in harness.read_rows(self.path(folder), kind)
            if row.get("split") != "test"
        ]

    def exit_record(self, folder):
        with open(self.path(folder, "exit.json")) as file:
            return json.load(file)

    def last_digest(self, folder):
        return harness.digest(
            self.path(folder, "checkpoints", harness.checkpoints(self.path(folder))[-1])
        )

    def test_delayed_has_one_run_at_every_layout(self):
        """Uses the tolerances of gpt_layouts_test.py: float32 sums in another order."""
        more = ("--set", "run.stop=8 steps")
        self.train("one", DELAYED, *more)
        one = harness.read_rows(self.path("one"), "train")
        self.assertEqual(len(one), 8)
        for ranks, layout in [
            (2, {"data": 2}),
            (4, {"data": 4}),
            (2, {"data": 2, "shard": "optimizer"}),
            (4, {"data": 4, "shard": "parameters"}),
            (2, {"pipeline": 2}),
            (4, {"tensor": 2, "pipeline": 2}),
            (8, {"data": 2, "tensor": 2, "pipeline": 2, "shard": "gradients", "sequence": "true"}),
        ]:
            name = "-".join("%s.%s" % item for item in layout.items())
            with self.subTest(layout=name):
                self.train(name, dict(DELAYED, **layout), *more, ranks=ranks)
                many = harness.read_rows(self.path(name), "train")
                for a, b in zip(one, many, strict=True):
                    self.assertLess(
                        abs(a["loss"] - b["loss"]), 5e-5 * a["loss"], "step %d" % a["step"]
                    )
                    self.assertLessEqual(
                        abs(a["grad_norm"] - b["grad_norm"]),
                        5e-4 * a["grad_norm"],
                        "step %d" % a["step"],
                    )

    def test_delayed_applies_the_gradient_of_the_step_before(self):
        """The first step changes nothing. The second step has the initial weights, and applies the
        first gradient."""
        for folder, parallel in (("delayed", DELAYED), ("step", {})):
            self.train(folder, parallel, ranks=2)
        late, at_once = (
            harness.read_rows(self.path(folder), "train") for folder in ("delayed", "step")
        )
        self.assertEqual(late[0]["loss"], at_once[0]["loss"])
        self.assertEqual((late[0]["grad_norm"], late[0]["skipped"]), (0, 0))
        self.assertEqual(late[1]["grad_norm"], at_once[0]["grad_norm"])
        self.assertNotEqual(late[1]["loss"], at_once[1]["loss"])
        self.assertLess(late[-1]["loss"], late[0]["loss"])
        info = json.loads(
            harness.run(
                "inspect", "--json", self.path("delayed/checkpoints/step_000000006.h5")
            ).stdout
        )
        self.assertEqual(info["updates"], 5)

    def test_a_restart_gives_the_bits_of_a_run_that_was_never_stopped(self):
        """A run ends and is given more steps. The delayed one also resumes at other layouts, as
        deterministic = true guarantees."""
        deterministic = (
            "--set",
            "run.deterministic=true",
            "--set",
            "batch.global=16",
            "--set",
            "optimizer.ema=0.9",
            "--set",
            "evaluate.every=4 steps",
            "--set",
            "checkpoint.every=4 steps",
        )
        for parallel, starts in (
            (DELAYED, [(2, {}), (1, {}), (4, {"shard": "parameters"})]),
            (PERIODIC, [(2, {}), (2, {}), (2, {})]),
        ):
            with self.subTest(sync=parallel["sync"]):
                whole, cut = (
                    parallel["sync"].split()[0] + "-whole",
                    parallel["sync"].split()[0] + "-cut",
                )
                self.train(whole, parallel, *deterministic, "--set", "run.stop=20 steps", ranks=2)
                for (ranks, layout), stop in zip(starts, (8, 12, 20), strict=True):
                    self.train(
                        cut,
                        dict(parallel, **layout),
                        *deterministic,
                        "--set",
                        "run.stop=%d steps" % stop,
                        ranks=ranks
                    )
                self.assertEqual(self.last_digest(cut), self.last_digest(whole))

    def test_a_stop_waits_for_the_average_and_the_run_goes_on_from_there(self):
        for parallel in (PERIODIC, DELAYED):
            name = parallel["sync"].split()[0]
            every = 4 if parallel is PERIODIC else 1
            with self.subTest(sync=parallel["sync"]):
                process, ranks, held = harness.start_held(
                    *self.arguments(name, parallel, LONG), step=6, ranks=2, cwd=self.folder
                )
                for rank in ranks:
                    os.kill(rank, signal.SIGUSR1)
                text = harness.end_of(process, held)
                self.assertEqual(process.returncode, 75, text)
                step = self.exit_record(name)["step"]
                self.assertGreaterEqual(step, 6)
                self.assertEqual(step % every, 0)
                self.assertEqual(harness.checkpoints(self.path(name)), ["step_%09d.h5" % step])
                end = ("--set", "run.stop=%d steps" % (step + 8), *LONG[2:])
                self.train(name, parallel, *end, ranks=2)
                self.train(name + "-whole", parallel, *end, ranks=2)
                self.assertEqual(self.last_digest(name), self.last_digest(name + "-whole"))

    def test_a_stop_file_waits_for_the_average(self):
        os.makedirs(self.path("run"))
        open(self.path("run", "STOP"), "w").close()
        self.train("run", PERIODIC, *LONG, ranks=2, expect=75)
        self.assertEqual(self.exit_record("run")["step"], 4)

    def test_a_time_is_over_at_an_average(self):
        self.train(
            "run",
            PERIODIC,
            "--set",
            "run.stop=1 second",
            "--set",
            "schedule.length=1000 steps",
            *LONG[2:],
            ranks=2
        )
        step = self.exit_record("run")["step"]
        self.assertGreater(step, 0)
        self.assertEqual(step % 4, 0)

    def test_what_is_due_between_averages_waits(self):
        more = (
            "--set",
            "run.stop=18 steps",
            "--set",
            "evaluate.every=24 samples",
            "--set",
            "checkpoint.every=40 samples",
            "--set",
            "checkpoint.best=none",
        )
        self.train("run", PERIODIC, *more, ranks=2)
        # Due after 3, 6, 9, 12, 15, 18 steps and at the end.
        self.assertEqual(self.steps("run", "evaluate"), [4, 8, 12, 16, 18])
        # After 5, 10, 15 steps and at the end.
        self.assertEqual(self.steps("run", "checkpoint"), [8, 12, 16, 18])

    def test_intervals_between_averages_are_refused(self):
        for key in ("evaluate.every", "checkpoint.every"):
            others = (
                "--set",
                ("checkpoint.every" if key == "evaluate.every" else "evaluate.every") + "=4 steps",
            )
            result = self.train("run", PERIODIC, "--set", key + "=6 steps", *others, expect=2)
            self.assertIn(
                "\"6 steps\" is not a multiple of parallel.sync = \"every 4 steps\"", result.text
            )
            self.assertIn("use \"4 steps\" or \"8 steps\"", result.text)
            for remedy in ("4 steps", "8 steps"):
                result = harness.run(
                    "check",
                    "deck.toml",
                    "--set",
                    "parallel.sync=every 4 steps",
                    "--set",
                    key + "=" + remedy,
                    *others,
                    cwd=self.folder
                )
                self.assertEqual(result.returncode, 0, result.text)

    def test_a_restart_may_not_change_sync_but_the_outer_momentum(self):
        every = ("--set", "evaluate.every=4 steps", "--set", "checkpoint.every=4 steps")
        self.train(
            "run", dict(PERIODIC, outer_momentum=0), "--set", "run.stop=4 steps", *every, ranks=2
        )
        for sync in ("step", "delayed", "every 2 steps"):
            result = self.train(
                "run", {"sync": sync}, "--set", "run.stop=8 steps", *every, ranks=2, expect=2
            )
            self.assertIn("parallel.sync", result.text)
        result = self.train("run", PERIODIC, "--set", "run.stop=8 steps", *every, ranks=2)
        self.assertIn("parallel.outer_momentum", result.text)
        self.assertIn("starts at zero", result.text)
        self.train(
            "run", dict(PERIODIC, outer_momentum=0.9), "--set", "run.stop=12 steps", *every, ranks=2
        )

    def test_where_state_lies_changes_no_bit(self):
        more = (
            "--set",
            "run.deterministic=true",
            "--set",
            "optimizer.ema=0.9",
            "--set",
            "run.stop=8 steps",
            "--set",
            "evaluate.every=4 steps",
            "--set",
            "checkpoint.every=4 steps",
        )
        for parallel, layouts in (
            (
                DELAYED,
                [
                    {},
                    {"shard": "parameters", "offload": "[\"optimizer\", \"parameters\"]"},
                    {"shard": "gradients", "offload": "[\"activations\"]"},
                ],
            ),
            (PERIODIC, [{}, {"offload": "[\"optimizer\", \"activations\"]"}, {"recompute": "all"}]),
        ):
            digests = set()
            for number, layout in enumerate(layouts):
                name = "%s-%d" % (parallel["sync"].split()[0], number)
                self.train(name, dict(parallel, **layout), *more, ranks=2)
                digests.add(self.last_digest(name))
            self.assertEqual(len(digests), 1, parallel)

    def test_the_norm_of_ranks_on_their_own_is_their_root_mean_square(self):
        """At a rate of zero two ranks see in one step what one rank sees in two."""
        more = (
            "--set",
            "data.shuffle=none",
            "--set",
            "schedule.rate=1e-30",
            "--set",
            "run.stop=4 steps",
            "--set",
            "evaluate.every=4 steps",
            "--set",
            "checkpoint.every=4 steps",
        )
        self.train("two", PERIODIC, *more, ranks=2)
        self.train("one", {}, *more, "--set", "batch.global=4")
        two, one = (harness.read_rows(self.path(folder), "train") for folder in ("two", "one"))
        for step in (0, 1):
            norms = [row["grad_norm"] for row in one[2 * step : 2 * step + 2]]
            self.assertNotAlmostEqual(norms[0], norms[1], places=3)
            # Float32 gradients of about 1.
            self.assertAlmostEqual(
                two[step]["grad_norm"], (sum(norm**2 for norm in norms) / 2) ** 0.5, places=6
            )
            self.assertAlmostEqual(
                two[step]["loss"],
                sum(row["loss"] for row in one[2 * step : 2 * step + 2]) / 2,
                places=6,
            )

    def test_weights_alone_bring_no_gradient_along(self):
        self.train("first", DELAYED)
        self.train(
            "second",
            DELAYED,
            "--restart",
            self.path("first/checkpoints/step_000000006.h5"),
            "--weights-only",
        )
        self.assertEqual(harness.read_rows(self.path("second"), "train")[0]["grad_norm"], 0)

    def test_ranks_that_go_their_own_ways_come_down_together(self):
        """The loss is that of the whole batch; the first step's is known.

        The norm is that of gradients of parts of the batch, which are larger than their mean.
        """
        more = (
            "--set",
            "run.stop=24 steps",
            "--set",
            "evaluate.every=8 steps",
            "--set",
            "checkpoint.every=8 steps",
        )
        self.train("local", {"sync": "every 8 steps"}, *more, ranks=4)
        self.train("step", {}, *more, ranks=4)
        local, step = (
            harness.read_rows(self.path(folder), "train") for folder in ("local", "step")
        )
        self.assertEqual(local[0]["loss"], step[0]["loss"])
        self.assertGreater(local[0]["grad_norm"], step[0]["grad_norm"])
        self.assertLess(local[-1]["loss"], 0.9 * local[0]["loss"])
        self.assertLess(
            harness.read_rows(self.path("local"), "evaluate")[-1]["loss"], 0.9 * local[0]["loss"]
        )


if __name__ == "__main__":
    harness.main(at_once=3)
