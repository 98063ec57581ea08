# SPDX-License-Identifier: Apache-2.0
"""Tests that a signalled or stopped run resumes with the bits and metrics of an undisturbed one.

faults_test.py tests killed runs.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import harness

STEPS = 40
LAST = "checkpoints/step_%09d.h5" % STEPS


class Restart(harness.Case):
    def setUp(self):
        super().setUp()
        self.arguments = ("--set", "run.stop=%d steps" % STEPS)

    def undisturbed(self):
        self.train("--set", "run.folder=whole", *self.arguments)
        return harness.digest(self.path("whole", LAST))

    def exit_record(self, folder="run"):
        with open(self.path(folder, "exit.json")) as file:
            return json.load(file)

    def test_a_signal_stops_with_75_and_the_same_command_goes_on(self):
        whole = self.undisturbed()
        self.arguments += ("--set", "checkpoint.every=1000 steps")
        process, _, held = self.start_held(*self.arguments)
        process.send_signal(signal.SIGUSR1)
        text = self.end_of(process, held)
        self.assertEqual(process.returncode, 75, text)
        record = self.exit_record()
        self.assertEqual(record["code"], 75)
        self.assertIn("SIGUSR1", record["reason"])
        self.assertEqual(record["checkpoint"], harness.checkpoints(self.path("run"))[-1])
        self.assertEqual(record["step"], int(record["checkpoint"][5:14]))
        self.train(*self.arguments, ranks=2)
        self.assertEqual(harness.digest(self.path("run", LAST)), whole)
        events = [row["event"] for row in harness.read_rows(self.path("run"), "event")]
        self.assertIn("restart", events)

    def test_a_stop_file_stops_at_the_next_step(self):
        os.makedirs(self.path("run"))
        open(self.path("run", "STOP"), "w").close()
        text = self.train(*self.arguments, expect=75).text
        self.assertIn("remove run/STOP and submit the same command again", text)
        os.remove(self.path("run", "STOP"))
        self.train(*self.arguments)
        self.assertEqual(self.exit_record()["code"], 0)

    def test_the_walltime_stops_before_the_job_is_killed(self):
        self.train(
            "--set",
            "run.stop=100000 steps",
            "--set",
            "run.walltime=2 seconds",
            "--set",
            "run.walltime_margin=0.5 seconds",
            expect=75,
        )
        self.assertTrue(harness.checkpoints(self.path("run")))

    def test_less_time_than_the_margin_is_told(self):
        """Otherwise each job of a chain would make one step, and report only that it was
        stopped."""
        job = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": str(int(time.time()) + 60)}
        result = harness.run(
            "train",
            "deck.toml",
            "--set",
            "run.stop=100000 steps",
            "--set",
            'run.walltime="auto"',
            cwd=self.folder,
            env=job,
        )
        self.assertEqual(result.returncode, 75, result.text)
        self.assertIn("no more than run.walltime_margin (300 s)", result.text)
        self.assertEqual(self.exit_record()["step"], 1)

    def test_a_terminal_that_is_gone_stops_a_run_with_a_checkpoint(self):
        process, _, held = self.start_held(*self.arguments)
        process.send_signal(signal.SIGHUP)
        text = self.end_of(process, held)
        self.assertEqual(process.returncode, 75, text)
        record = self.exit_record()
        self.assertEqual(
            (record["code"], record["reason"], record["checkpoint"]),
            (75, "SIGHUP", harness.checkpoints(self.path("run"))[-1]),
        )
        whole = self.undisturbed()
        fault = ("--allow-faults", "--set", "debug.fault=stop rank 0 step 20")
        process = subprocess.Popen(
            ["nohup", *harness.command("train", "deck.toml", *self.arguments, *fault)],
            cwd=self.folder,
            env=harness.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        harness.wait_for(
            lambda: process.poll() is not None or harness.state_of(process.pid)[0] == "T",
            "a rank that stopped itself",
        )
        process.send_signal(signal.SIGHUP)
        text = self.end_of(process, process.pid)
        self.assertEqual(process.returncode, 0, text)
        self.assertEqual(harness.digest(self.path("run", LAST)), whole)

    def test_what_is_printed_gets_into_no_file_where_the_standard_streams_are_closed(self):
        closed = subprocess.run(
            [
                "sh",
                "-c",
                'exec "$0" "$@" <&- >&- 2>&-',
                *harness.command("train", "deck.toml", *self.arguments),
            ],
            cwd=self.folder,
            env=harness.environment(),
            timeout=harness.PATIENCE,
        )
        self.assertEqual(closed.returncode, 0)
        steps = [row["step"] for row in harness.read_rows(self.path("run"), "train")]
        self.assertEqual(steps, list(range(1, STEPS + 1)))
        for name in harness.checkpoints(self.path("run")):
            self.assertEqual(
                harness.run("verify", self.path("run/checkpoints", name)).returncode, 0, name
            )

    def test_checkpoints_that_are_gone_are_missed(self):
        self.train("--set", "run.stop=5 steps")
        shutil.rmtree(self.path("run/checkpoints"))
        missed = "has metrics of an earlier start and no checkpoint; the run starts fresh"
        self.assertIn(missed, self.train("--set", "run.stop=5 steps").text)
        # As requested.
        self.assertNotIn(missed, self.train("--set", "run.stop=5 steps", "--restart", "none").text)

    def test_a_finished_run_stays_as_it_is(self):
        self.train(*self.arguments)
        names = ["metrics.jsonl", "deck.toml", "environment.json"] + [
            "checkpoints/" + name for name in os.listdir(self.path("run/checkpoints"))
        ]

        def state():
            return {
                name: (
                    os.stat(self.path("run", name)).st_mtime_ns,
                    pathlib.Path(self.path("run", name)).read_bytes(),
                )
                for name in names
            }

        before = state()
        for ranks in (1, 2):
            self.train(*self.arguments, ranks=ranks)
            self.assertEqual(before, state())
            self.assertEqual(self.exit_record()["code"], 0)
            self.assertEqual(self.exit_record()["step"], STEPS)

    def test_a_finished_run_needs_no_data(self):
        self.train(*self.arguments)
        before = pathlib.Path(self.path("run", "metrics.jsonl")).read_bytes()
        os.remove(self.path("data"))
        for ranks in (1, 2):
            self.assertIn("nothing to do", self.train(*self.arguments, ranks=ranks).text)
            self.assertEqual(self.exit_record()["step"], STEPS)
        for more in (("--set", "run.stop=%d steps" % (2 * STEPS)), ("--restart", "none")):
            self.assertIn("data.train", self.train(*self.arguments, *more, expect=2).text)
        self.assertEqual(before, pathlib.Path(self.path("run", "metrics.jsonl")).read_bytes())

    def test_a_checkpoint_is_read_as_often_where_the_run_had_ended_as_done(self):
        """Tests that a start reads the checkpoint as often as for a completed run.

        Such a start reads the checkpoint before it looks for data. Reads are counted when the first
        step begins. Reader threads may have loaded some batches more or less.
        """
        self.train("--set", "model.width=16")
        shutil.copytree(self.path("run"), self.path("lost"))
        os.remove(self.path("lost", "exit.json"))
        read = {}
        for folder in ("run", "lost"):
            process, _, held = self.start_held(
                "--set",
                "run.folder=" + folder,
                "--set",
                "model.width=16",
                "--set",
                "run.stop=21 steps",
                step=21,
            )
            with open("/proc/%d/io" % held) as file:
                read[folder] = int(re.search(r"rchar: (\d+)", file.read())[1])
            text = self.end_of(process, held)
            self.assertEqual(process.returncode, 0, text)
        size = os.path.getsize(self.path("run/checkpoints/step_000000020.h5"))
        self.assertGreater(read["lost"], size)
        self.assertLess(abs(read["run"] - read["lost"]), size / 2)

    def test_a_new_run_in_an_old_folder_makes_its_own_evaluations(self):
        for restart in ("auto", "none"):
            self.train("--set", "run.stop=5 steps", "--restart", restart)
        rows = harness.read_rows(self.path("run"))
        self.assertEqual(
            [row["event"] for row in rows if row["kind"] == "event"], ["start", "start"]
        )
        self.assertEqual(
            [row["split"] for row in rows if row["kind"] == "evaluate"], ["validation", "test"] * 2
        )

    def test_the_best_is_of_the_metric_that_the_deck_names(self):
        self.train("--set", "run.stop=10 steps", "--set", "checkpoint.best=top1")
        result = self.train("--set", "run.stop=20 steps", "--set", "checkpoint.best=loss")
        self.assertIn("checkpoint.best is now loss", result.text)
        losses = {
            row["step"]: row["loss"]
            for row in harness.read_rows(self.path("run"), "evaluate")
            if row["split"] == "validation" and row["step"] > 10
        }
        text = harness.run("inspect", self.path("run/checkpoints/best.h5")).text
        self.assertIn(str(min(losses, key=losses.get)), text)

    def test_a_fresh_start_keeps_the_best_of_an_earlier_one(self):
        """As after a cleaning of a scratch file system, which leaves what is read often."""
        self.train("--set", "run.stop=10 steps", "--set", "checkpoint.best=loss")
        folder = self.path("run/checkpoints")
        with open(folder + "/best.h5", "rb") as file:
            best = file.read()
        for name in os.listdir(folder):
            if name.startswith("step_"):
                os.remove(os.path.join(folder, name))
        result = self.train("--set", "run.stop=10 steps", "--set", "checkpoint.best=loss")
        self.assertIn("a fresh start", result.text)
        (aside,) = (name for name in os.listdir(folder) if name.startswith("before-"))
        self.assertIn(aside, result.text)
        with open(os.path.join(folder, aside, "best.h5"), "rb") as file:
            self.assertEqual(file.read(), best)

    def test_a_start_from_weights_keeps_the_best_of_an_earlier_one(self):
        self.train("--set", "run.stop=10 steps")
        folder = self.path("run/checkpoints")
        for name in harness.checkpoints(self.path("run")):
            os.rename(os.path.join(folder, name), self.path("moved.h5"))
        before = harness.digest(self.path("run/checkpoints/best.h5"))
        words = ("--set", "run.stop=5 steps", "--weights-only", "--restart")
        text = self.train(*words, "run/checkpoints/best.h5", ranks=2, expect=2).text
        self.assertIn("best.h5: is among the checkpoints of this run", text)
        self.assertEqual(harness.digest(self.path("run/checkpoints/best.h5")), before)
        self.train(*words, "moved.h5")
        (aside,) = (name for name in os.listdir(folder) if name.startswith("before-"))
        self.assertEqual(harness.digest(self.path("run/checkpoints", aside, "best.h5")), before)
        # Now the run has checkpoints of its own, and the file is not used.
        words = ("--set", "run.stop=8 steps", *words[2:])
        self.assertIn("is ignored", self.train(*words, "run/checkpoints/best.h5").text)

    def test_the_best_is_of_the_set_that_the_deck_names(self):
        self.train("--set", "run.stop=10 steps")
        result = self.train("--set", "run.stop=20 steps", "--set", "data.validation=data/test")
        self.assertIn("data.validation is now", result.text)
        top1 = {
            row["step"]: row["top1"]
            for row in harness.read_rows(self.path("run"), "evaluate")
            if row["split"] == "validation" and row["step"] > 10
        }
        best = json.loads(
            harness.run("inspect", "--json", self.path("run/checkpoints/best.h5")).stdout
        )
        self.assertEqual(best["step"], max(top1, key=top1.get))

    def test_sgd_without_momentum_has_no_state_and_starts_one_at_zero(self):
        with_momentum = ("--set", "optimizer.nesterov=false", "--set", "optimizer.momentum=0.5")
        without = ("--set", "optimizer.nesterov=false", "--set", "optimizer.momentum=0")

        def tensors(step):
            path = self.path("run/checkpoints/step_%09d.h5" % step)
            info = json.loads(harness.run("inspect", "--json", path).stdout)
            return [name for name in info["tensors"] if name.startswith("optimizer/")]

        self.train("--set", "run.stop=5 steps", *with_momentum)
        self.assertGreater(len(tensors(5)), 0)
        # The state in the file is not needed, and not written again.
        self.train("--set", "run.stop=10 steps", *without)
        self.assertEqual(tensors(10), [])
        result = self.train("--set", "run.stop=15 steps", *with_momentum)
        self.assertRegex(result.text, r"has no optimizer state for \d+ tensors: it starts at zero")
        self.assertGreater(len(tensors(15)), 0)

    def test_a_path_that_is_none_is_refused_also_where_it_is_not_needed(self):
        self.train("--set", "run.stop=5 steps")
        result = self.train("--set", "run.stop=10 steps", "--restart", "nonee", expect=2)
        self.assertIn("--restart nonee: no such checkpoint; give a path, or one of", result.text)

    def test_an_error_before_the_first_step_is_one_of_all_ranks(self):
        os.makedirs(self.path("run/log.txt"))
        result = harness.run("train", "deck.toml", ranks=2, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertEqual(result.text.count("error:"), 1, result.text)

    def test_a_missing_final_evaluation_is_made_up_for(self):
        self.train(*self.arguments)
        rows = harness.read_rows(self.path("run"))
        last = max(place for place, row in enumerate(rows) if row["kind"] == "evaluate")
        self.assertEqual(rows[last]["split"], "test")
        with open(self.path("run", "metrics.jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows[:last])
        self.train(*self.arguments)
        again = harness.read_rows(self.path("run"), "evaluate")[-1]
        self.assertEqual((again["split"], again["loss"]), ("test", rows[last]["loss"]))

    def test_rotation_keeps_what_the_deck_says(self):
        self.train(*self.arguments, "--set", "checkpoint.keep=2", "--set", "checkpoint.best=top1")
        self.assertEqual(
            harness.checkpoints(self.path("run")), ["step_%09d.h5" % s for s in (STEPS - 5, STEPS)]
        )
        self.assertTrue(os.path.exists(self.path("run/checkpoints/best.h5")))
        self.assertFalse(
            [name for name in os.listdir(self.path("run/checkpoints")) if name.endswith(".tmp")]
        )

    def test_required_never_starts_fresh(self):
        result = self.train("--restart", "required", expect=2)
        self.assertIn("no checkpoint to resume from", result.text)

    def test_none_moves_the_old_checkpoints_aside(self):
        self.train("--set", "run.stop=10 steps")
        self.train("--set", "run.stop=5 steps", "--restart", "none")
        self.assertEqual(harness.checkpoints(self.path("run")), ["step_000000005.h5"])
        aside = [
            name for name in os.listdir(self.path("run/checkpoints")) if name.startswith("before-")
        ]
        self.assertEqual(len(aside), 1)
        self.assertIn("step_000000010.h5", os.listdir(self.path("run/checkpoints", aside[0])))

    def test_a_change_that_may_not_be_made_is_refused(self):
        self.train("--set", "run.stop=5 steps")
        for change, key in (
            ("run.seed=8", "run.seed"),
            ("model.width=16", "model.width"),
            ("optimizer.kind=adamw", "optimizer.kind"),
            ("data.train=data/validation", "data.train"),
        ):
            more = ("--set", "data.test=data/test") if key != "optimizer.kind" else ()
            deck = (
                harness.DECK.replace("momentum = 0.9\n", "")
                if key == "optimizer.kind"
                else harness.DECK
            )
            self.write_deck(deck, "changed.toml")
            result = self.train("--set", change, *more, deck="changed.toml", expect=2)
            self.assertIn(key, result.text)
        result = self.train("--set", "schedule.rate=0.05", "--set", "run.stop=10 steps")
        self.assertIn("schedule.rate", result.text)

    def test_state_goes_to_the_host_and_comes_back_at_a_restart(self):
        """Tests restarts with and without offload.

        A checkpoint does not record where slots and master weights were stored. The bits equal
        those of a run without offload.
        """
        self.arguments = ("--set", "schedule.kind=constant", "--set", "parallel.shard=parameters")
        self.train(
            "--set", "run.folder=whole", "--set", "run.stop=16 steps", *self.arguments, ranks=2
        )
        for stop, offload, ranks in (
            (5, '["optimizer", "parameters"]', 2),
            (8, '["optimizer", "parameters"]', 1),
            (12, "[]", 2),
            (16, '["optimizer"]', 2),
        ):
            result = self.train(
                "--set",
                "run.stop=%d steps" % stop,
                "--set",
                "parallel.offload=" + offload,
                *self.arguments,
                ranks=ranks,
            )
            self.assertEqual("of the host" in result.text, offload != "[]", result.text)
            self.assertEqual(self.exit_record()["step"], stop)
        last = "checkpoints/step_000000016.h5"
        self.assertEqual(
            harness.digest(self.path("run", last)), harness.digest(self.path("whole", last))
        )


if __name__ == "__main__":
    harness.main(at_once=3)
