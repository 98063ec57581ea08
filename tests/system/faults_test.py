# SPDX-License-Identifier: Apache-2.0
"""Tests injected faults.

Ranks are killed, stopped or slow, compute wrong numbers, or hold a flipped bit. The launcher is
killed. Folders disappear or fill up during a run. Checkpoints are damaged.

Each fault ends with the right exit code and one clear line, and leaves no process and no temporary
file. The resumed run has the bits of an undisturbed one. Each test waits for the event it needs.
"""

import ctypes
import json
import os
import random
import re
import shutil
import signal
import time

import harness
from short_run import ARGUMENTS, LAST, STEPS

PHASES = (
    "checkpoint-begin",
    "checkpoint-copy",
    "checkpoint-write",
    "checkpoint-close",
    "checkpoint-rename",
    "checkpoint-renamed",
    "checkpoint-rotate",
)
# The newest checkpoint after a kill in that of step 10: the one of step 5 is in place before the
# next one begins. Rank 0 renames files; its progress is open when another rank is killed just
# before or after.
NEWEST = {
    "checkpoint-begin": 5,
    "checkpoint-copy": 5,
    "checkpoint-write": 5,
    "checkpoint-close": 5,
    "checkpoint-rename": 5,
    "checkpoint-renamed": 10,
    "checkpoint-rotate": 10,
}
LOUD = {"OMPI_MCA_orte_execute_quiet": "0"}  # the launcher prints its messages as for users
# seconds, multiplied by the ranks on each core. A shorter one could blame a healthy rank on a busy
# machine
DEADLINE = 4
LONG_AGO = 3600  # seconds: a rank that sleeps this long is ended by another process
libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096


def step_of(name):
    return int(name[5:14])


class Faults(harness.Case):
    samples = 320

    @classmethod
    def setUpClass(cls):
        """Makes the bits of a run without faults, which are the same at any number of data
        ranks."""
        super().setUpClass()
        case = cls("undisturbed")
        case.setUp()
        case.undisturbed()
        case.tearDown()

    def undisturbed(self):
        self.train(*ARGUMENTS, "--set", "checkpoint.keep=4")
        type(self).whole = harness.digest(self.path("run", LAST))
        shutil.copytree(self.path("run"), self.shared + "/run")

    def run_with(self, fault, *more, ranks=2, env={}):
        """Runs the program with an injected fault."""
        return harness.run(
            "train",
            "deck.toml",
            *ARGUMENTS,
            *more,
            "--allow-faults",
            "--set",
            "debug.fault=" + fault,
            ranks=ranks,
            cwd=self.folder,
            env=env
        )

    def start_held(self, *more, ranks=2):
        return super().start_held(*ARGUMENTS, *more, ranks=ranks, env=LOUD)

    def exit_record(self):
        with open(self.path("run", "exit.json")) as file:
            return json.load(file)

    def events(self, name):
        return [row for row in harness.read_rows(self.path("run"), "event") if row["event"] == name]

    def assert_nothing_left(self):
        """Checks that no process in this test's folder is left, and that every checkpoint is
        readable."""
        harness.wait_for(lambda: not harness.processes_in(self.folder), "all processes gone")
        for name in harness.checkpoints(self.path("run")):
            self.assertEqual(
                harness.run("verify", self.path("run/checkpoints", name)).returncode, 0, name
            )

    def assert_resumes(self, ranks=1):
        """Resumes without the fault and checks for the bits of an undisturbed run and no temporary
        files."""
        self.train(*ARGUMENTS, ranks=ranks)
        self.assertEqual(harness.digest(self.path("run", LAST)), self.whole)
        self.assertFalse(
            [name for name in os.listdir(self.path("run/checkpoints")) if ".tmp" in name]
        )

    def assert_launcher_names(self, text, rank):
        """Checks that the launcher names the signal, the rank and its host (hydra: the process and
        its host).

        Neither the program nor MPI may print anything, in any rank.
        """
        if harness.has_hydra():
            self.assertRegex(text, r"PID \d+ RUNNING AT \S+\n")
            self.assertRegex(text, r"Killed \(signal 9\)|KILLED BY SIGNAL: 9")
        else:
            self.assertEqual(
                re.findall(
                    r"noticed that process rank (\d+) with PID \d+ on node \S+ exited on\s+signal "
                    r"9",
                    text,
                ),
                [str(rank)],
                text,
            )
        self.assertEqual(
            [line for line in text.splitlines() if re.search(r"error: |MPI_|PMI|\*\*\*", line)],
            [],
            text,
        )

    def test_faults_are_refused_unless_allowed(self):
        fault = ("--set", "debug.fault=kill rank 0 step 1")
        result = harness.run("train", "deck.toml", *fault, cwd=self.folder)
        if result.returncode == 2:  # a test build allows faults
            self.assertIn("--allow-faults", result.text)
            self.assertFalse(os.path.exists(self.path("run")))
        for wrong in (
            "kill",
            "kill rank 1",
            "kil rank 1 step 2",
            "sleep rank 1 step 2",
            "kill rank 1 step 0",
            "kill rank 1 step 4..2",
            "kill rank 1 step 2 phase lunch",
            "kill rank 1 step 2 phase",
        ):
            result = self.train("--allow-faults", "--set", "debug.fault=" + wrong, expect=2)
            self.assertIn("debug.fault", result.text)

    # Ranks that die

    def kill_in_step(self, rank, ranks):
        result = self.run_with("kill rank %d step 12" % rank, ranks=ranks, env=LOUD)
        self.assertEqual(result.returncode, harness.code_of_killed(), result.text)
        self.assert_launcher_names(result.text, rank)
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(self.path("run", "exit.json")))
        # depends on whether the thread had finished the second checkpoint
        self.assertIn(
            harness.checkpoints(self.path("run"))[-1], ("step_000000005.h5", "step_000000010.h5")
        )
        self.assert_resumes(2)

    def test_the_first_rank_killed_in_a_step(self):
        self.kill_in_step(0, 2)

    def test_a_middle_rank_killed_in_a_step(self):
        self.kill_in_step(1, 4)

    def test_the_last_rank_killed_in_a_step(self):
        self.kill_in_step(3, 4)

    def kill_in_checkpoints(self, rank, way):
        for phase in PHASES[: len(PHASES) - rank]:  # only rank 0 rotates checkpoints
            if phase == "checkpoint-copy" and way == "false":
                continue  # this rank has no such phase
            with self.subTest(phase):
                anew = (
                    "--restart",
                    "none",
                    "--set",
                    "checkpoint.keep=1",
                    "--set",
                    "checkpoint.async=" + way,
                )
                result = self.run_with(
                    "kill rank %d step 10 phase %s" % (rank, phase), *anew, env=LOUD
                )
                self.assertEqual(result.returncode, harness.code_of_killed(), result.text)
                self.assert_launcher_names(result.text, rank)
                self.assert_nothing_left()
                self.assertIn(
                    step_of(harness.checkpoints(self.path("run"))[-1]),
                    (5, 10) if rank > 0 and "rename" in phase else (NEWEST[phase],),
                )
                self.assert_resumes()

    def test_the_first_rank_killed_in_each_phase_of_a_checkpoint_beside_training(self):
        self.kill_in_checkpoints(0, "true")

    def test_the_first_rank_killed_in_each_phase_of_a_checkpoint_at_once(self):
        self.kill_in_checkpoints(0, "false")

    def test_the_last_rank_killed_in_each_phase_of_a_checkpoint_beside_training(self):
        self.kill_in_checkpoints(1, "true")

    def test_the_last_rank_killed_in_each_phase_of_a_checkpoint_at_once(self):
        self.kill_in_checkpoints(1, "false")

    def test_a_killed_launcher_takes_its_ranks_along(self):
        """Tests that ranks exit once the launcher is gone, also if one sleeps and the others wait
        for it."""
        fault = ("--allow-faults", "--set", "debug.fault=sleep %d rank 0 step 12" % LONG_AGO)
        process = harness.start(
            "train", "deck.toml", *ARGUMENTS, *fault, ranks=2, cwd=self.folder, env=LOUD
        )
        harness.wait_for(lambda: harness.row_count(self.path("run"), "train") >= 11, "11 steps")
        process.kill()
        text, _ = process.communicate(timeout=harness.PATIENCE)
        self.assert_nothing_left()
        self.assertEqual(self.errors_of(text), [])
        # Open MPI 4 ends its ranks before they notice
        if os.path.exists(self.path("run", "exit.json")):
            record = self.exit_record()
            self.assertEqual((record["code"], record["step"]), (77, 11))
            self.assertIn("the launcher, or its part on ", record["reason"])
        self.assert_resumes(2)

    def test_random_kills_in_a_row(self):
        """Kills a rank, the launcher or all processes at random times, from the start to some steps
        later.

        TRIREME_TEST_KILLS sets the number of kills. Until the last kill no run reaches its end,
        even if a busy machine delays this script.
        """
        kills = int(os.environ.get("TRIREME_TEST_KILLS", "4"))
        # otherwise the final step, which is known only at the end, would change earlier ones
        one_rate = (
            "--set",
            "schedule.kind=constant",
            "--set",
            "schedule.rate=1e-4",
            *ARGUMENTS[2:],
        )
        rng = random.Random(kills)
        for start in range(kills):
            process = harness.start(
                "train",
                "deck.toml",
                *one_rate,
                "--set",
                "run.stop=1000000 steps",
                ranks=1 + start % 2,
                cwd=self.folder
            )
            rows = harness.row_count(self.path("run"), "train") + rng.choice((0, 0, 1, 3, 6, 10))
            harness.wait_for(
                lambda: process.poll() is not None
                or harness.row_count(self.path("run"), "train") >= rows,
                "more steps",
            )
            # may also hit the start of a run
            time.sleep(rng.uniform(0, 0.4) if rng.random() < 0.3 else 0)
            self.assertIsNone(process.poll())
            self.kill_some(rng, process)
            text, _ = process.communicate(timeout=harness.PATIENCE)
            harness.wait_for(lambda: not harness.processes_in(self.folder), "all processes gone")
            self.assertNotIn(process.returncode, (0, 2, 75, 76, 77), text)
        steps = 10 + max(
            [row["step"] for row in harness.rows_so_far(self.path("run"), "train")], default=0
        )
        if kills > 4:
            print("%d kills in a run of %d steps" % (kills, steps))
        until = (*one_rate, "--set", "run.stop=%d steps" % steps)
        self.train(*until)
        self.train(*until, "--set", "run.folder=whole")
        last = "checkpoints/step_%09d.h5" % steps
        self.assertEqual(
            harness.digest(self.path("run", last)), harness.digest(self.path("whole", last))
        )
        self.assertEqual(self.metrics("run"), self.metrics("whole"))
        self.assertFalse(
            [name for name in os.listdir(self.path("run/checkpoints")) if ".tmp" in name]
        )

    def metrics(self, folder):
        rows = harness.read_rows(self.path(folder))
        keys = {"train": ("loss", "grad_norm"), "evaluate": ("loss", "top1", "top5", "samples")}
        return {
            (row["kind"], row["step"], row.get("split")): [row[key] for key in keys[row["kind"]]]
            for row in rows
            if row["kind"] in keys
        }

    def kill_some(self, rng, process):
        """Sends SIGKILL to one rank, to the launcher, or to all of them."""
        pids = harness.ranks_of(process)
        for victim in rng.choice([[pid] for pid in pids] + [[process.pid], pids + [process.pid]]):
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass

    # Ranks that do not answer

    def stop_rank(self, rank):
        result = self.run_with(
            "stop rank %d step 12" % rank, "--set", "health.watchdog=%g seconds" % DEADLINE
        )
        self.assertEqual(result.returncode, 77, result.text)
        said = self.errors_of(result.text)
        self.assertEqual(len(said), 1, result.text)
        self.assertRegex(said[0], r"^error: rank %d on \S+ sent no heartbeat for \d" % rank)
        self.assertRegex(said[0], r"last known: step \d+, phase [a-z-]+")
        self.assert_nothing_left()
        record = self.exit_record()
        self.assertEqual((record["code"], record["step"]), (77, 11))
        self.assertIn("rank %d" % rank, record["reason"])
        self.assertIn(record["checkpoint"], harness.checkpoints(self.path("run")))
        self.assertIn("rank %d" % rank, self.events("rank_lost")[-1]["detail"])
        with open(self.path("run", "log.txt")) as file:
            self.assertIn("sent no heartbeat", file.read())
        self.assert_resumes()

    def test_the_first_rank_stopped_is_named(self):
        self.stop_rank(0)

    def test_the_last_rank_stopped_is_named(self):
        self.stop_rank(1)

    def test_a_rank_that_stands_still_though_its_signs_go_on_is_named_with_what_the_others_wait_for(
        self,
    ):
        result = self.run_with(
            "sleep %d rank 1 step 12" % LONG_AGO,
            "--set",
            "health.watchdog=%g seconds" % (DEADLINE / 2),
            ranks=4,
        )
        self.assertEqual(result.returncode, 77, result.text)
        self.assertRegex(result.text, r"error: rank 1 on \S+ stalled for \d")
        self.assertEqual(len(self.errors_of(result.text)), 1, result.text)
        self.assertRegex(
            result.text,
            r"rank 0 on \S+: last known: step 12, phase step; .* blocked on peers for [0-9.]+ s: "
            r"\S+ \d+ trireme/",
        )
        self.assert_nothing_left()
        self.assertIn("rank 1", self.exit_record()["reason"])

    def test_a_slow_rank_is_named(self):
        """Tests that a slow rank is named.

        The sleep grows as long as a busy machine delays the other rank equally. Rows of metrics may
        also name other ranks, which the machine delayed. Row 6 is about steps 4 and 5.
        """
        for seconds in (1, 8, 30):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            result = self.run_with(
                "sleep %d rank 1 step 4..8" % seconds, "--set", "monitor.every=2 steps"
            )
            self.assertEqual(result.returncode, 0, result.text)
            slow = [
                (
                    row["step"],
                    re.match(r"rank (\d) on \S+ is slow: busy ([0-9.]+) s per step", row["detail"]),
                )
                for row in self.events("slow_rank")
                if row["step"] in (6, 8)
            ]
            if [(step, said[1]) for step, said in slow] == [(6, "1"), (8, "1")]:
                break
        self.assertEqual([(step, said[1]) for step, said in slow], [(6, "1"), (8, "1")])
        for _, said in slow:
            self.assertGreaterEqual(float(said[2]), seconds)
        # The warning appears once, not in each row. It came earlier if the machine itself slowed
        # this rank down.
        rows = [
            row["step"] for row in self.events("slow_rank") if row["detail"].startswith("rank 1 ")
        ]
        warned = [
            int(step)
            for step in re.findall(r"warning: step (\d+): rank 1 on \S+ is slow", result.text)
        ]
        self.assertEqual(warned, [step for step in rows if step - 2 not in rows], result.text)
        self.assertEqual(harness.digest(self.path("run", LAST)), self.whole)

    # Signals and launchers

    def test_a_signal_to_one_rank_stops_all(self):
        process, pids, held = self.start_held()
        other = [pid for pid in pids if pid != held][0]
        os.kill(other, signal.SIGTERM)
        text = self.end_of(process, held)
        self.assertEqual(process.returncode, 75, text)
        self.assert_nothing_left()
        record = self.exit_record()
        self.assertEqual(
            (record["code"], record["checkpoint"]), (75, harness.checkpoints(self.path("run"))[-1])
        )
        self.assertEqual(record["step"], step_of(record["checkpoint"]))
        self.assertLessEqual(record["step"], 13)
        self.assertIn("signal", record["reason"])
        self.assertEqual(self.errors_of(text), [])
        self.assert_resumes()

    def test_a_second_job_in_the_folder_is_refused_and_the_first_goes_on(self):
        process, pids, held = self.start_held()
        result = self.train(*ARGUMENTS, ranks=2, expect=2)
        self.assertRegex(
            result.text, r"run\.lock: this run folder is in use by process %d on host \S+" % held
        )
        self.assertEqual(len(self.errors_of(result.text)), 1, result.text)
        text = self.end_of(process, held)
        self.assertEqual(process.returncode, 0, text)
        self.assert_nothing_left()
        self.assertEqual(harness.digest(self.path("run", LAST)), self.whole)
        self.assertEqual((len(self.events("start")), len(self.events("restart"))), (1, 0))

    # Numbers that go wrong

    def test_a_gradient_of_one_rank_that_is_not_a_number_is_skipped_by_all(self):
        result = self.run_with("nan rank 1 step 7..8")
        self.assertEqual(result.returncode, 0, result.text)
        self.assertEqual([row["step"] for row in self.events("skipped_step")], [7, 8])
        self.assertEqual(result.text.count("is not finite"), 2, result.text)
        rows = harness.last_by_step(harness.read_rows(self.path("run"), "train"))
        self.assertIsNone(rows[7]["grad_norm"])
        self.assertIsNotNone(rows[9]["grad_norm"])
        skipped = json.loads(harness.run("inspect", "--json", self.path("run", LAST)).stdout)
        self.assertEqual(skipped["updates"], STEPS - 2)

    def test_many_bad_steps_roll_back_and_pass_over_the_data(self):
        result = self.run_with("nan rank 0 step 12..14", "--set", "health.rollback_after=3")
        self.assertEqual(result.returncode, 0, result.text)
        self.assertEqual(len(self.events("rollback")), 1)
        self.assertIn("from step 14 to 10", self.events("rollback")[0]["detail"])
        rows = [row for row in harness.read_rows(self.path("run"), "train")]
        self.assertEqual(
            [row["step"] for row in rows], list(range(1, 15)) + list(range(11, STEPS + 1))
        )
        # the data were not read again
        self.assertAlmostEqual(
            rows[14]["epoch"] - rows[13]["epoch"], rows[1]["epoch"] - rows[0]["epoch"]
        )

    def test_too_many_roll_backs_end_the_run(self):
        result = self.run_with(
            "nan rank 1 step 11..100",
            "--set",
            "health.rollback_after=2",
            "--set",
            "health.rollbacks=2",
            "--set",
            "run.stop=40 steps",
        )
        self.assertEqual(result.returncode, 76, result.text)
        self.assertEqual(len(self.events("rollback")), 2)
        self.assertEqual(len(self.events("diverged")), 1)
        self.assertEqual(self.exit_record()["code"], 76)

    def test_a_flipped_bit_is_found_and_taken_back(self):
        result = self.run_with(
            "flip rank 2 step 13", "--set", "health.compare_replicas=2 steps", ranks=4
        )
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(
            result.text,
            r"weights of replicas differ at rank 2 on \S+: rolled back from step 14 to 10",
        )
        self.assertEqual(len(self.events("rollback")), 1)
        self.assertEqual(harness.digest(self.path("run", LAST)), self.whole)

    def test_a_rollback_to_a_checkpoint_without_optimizer_state_sets_it_to_zero(self):
        plain = ("--set", "optimizer.nesterov=false")
        self.train(*ARGUMENTS, *plain, "--set", "optimizer.momentum=0", "--set", "run.stop=5 steps")
        shutil.copytree(self.path("run"), self.path("undisturbed"))
        later = (*plain, "--set", "checkpoint.every=100 steps")
        self.train(*ARGUMENTS, *later, "--set", "run.folder=undisturbed")
        result = self.run_with(
            "flip rank 2 step 13", *later, "--set", "health.compare_replicas=2 steps", ranks=4
        )
        self.assertEqual(result.returncode, 0, result.text)
        self.assertRegex(result.text, r"rolled back from step 14 to 5")
        # at the start and at the rollback
        self.assertEqual(result.text.count("it starts at zero"), 2, result.text)
        self.assertEqual(
            harness.digest(self.path("run", LAST)), harness.digest(self.path("undisturbed", LAST))
        )

    def test_a_flipped_bit_without_a_checkpoint_ends_the_run(self):
        result = self.run_with("flip rank 1 step 3", "--set", "health.compare_replicas=4 steps")
        self.assertEqual(result.returncode, 77, result.text)
        # with two ranks there is no majority
        self.assertRegex(result.text, r"differ at rank 0 on \S+, rank 1 on")
        self.assertEqual(len(self.events("replicas_differ")), 1)
        self.assert_resumes()

    # Folders and files

    def test_a_run_folder_that_is_taken_away(self):
        process, pids, held = self.start_held()
        shutil.rmtree(self.path("run"))
        text = self.end_of(process, held)
        self.assertEqual(process.returncode, 1, text)
        self.assertEqual(len(self.errors_of(text)), 1, text)
        self.assertRegex(self.errors_of(text)[0], r"run/\S+: ")
        harness.wait_for(lambda: not harness.processes_in(self.folder), "all processes gone")
        self.assertFalse(os.path.exists(self.path("run")) and harness.checkpoints(self.path("run")))
        self.assert_resumes()

    def test_a_run_folder_that_becomes_read_only(self):
        process, pids, held = self.start_held()
        folder = self.path("run").encode()
        mounted = libc.mount(folder, folder, None, MS_BIND, None) == 0
        try:
            mounted = (
                mounted
                and libc.mount(None, folder, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None) == 0
            )
            before = harness.checkpoints(self.path("run"))
            text = self.end_of(process, held)
        finally:
            libc.umount2(folder, 2)
        if not mounted:
            self.skipTest("this user may not make a folder read-only for itself")
        self.assertEqual(process.returncode, 1, text)
        self.assertEqual(len(self.errors_of(text)), 1, text)
        self.assertIn("Read-only file system", self.errors_of(text)[0])
        self.assertIn(harness.checkpoints(self.path("run"))[0], before)
        self.assert_nothing_left()
        self.assert_resumes()

    def test_a_newest_checkpoint_that_is_damaged_is_passed_over(self):
        def cut(file, bytes):
            file.truncate(bytes * 2 // 3)

        def zero(file, bytes):
            file.write(bytes * b"\0")

        def flip(place):
            def at(file, bytes):
                file.seek(place(file, bytes))
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(b"%c" % (byte ^ 4))

            return at

        def after(mark, bytes):
            def place(file, _):
                found = file.read().find(mark)
                self.assertGreater(found, 0)
                return found + bytes

            return place

        kinds = {
            "cut short": cut,
            "zeroed": zero,
            "flipped in the seal": flip(lambda file, bytes: 100),
            "flipped in the superblock": flip(after(b"\x89HDF", 9)),
            "flipped in an object header": flip(after(b"OHDR", 6)),
            "flipped in the data": flip(lambda file, bytes: bytes // 2),
        }
        for kind, damage in kinds.items():
            with self.subTest(kind):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                shutil.copytree(self.shared + "/run", self.path("run"))
                path = self.path("run", LAST)
                with open(path, "r+b") as file:
                    damage(file, os.path.getsize(path))
                result = self.train(*ARGUMENTS)
                said = [line for line in result.text.splitlines() if line.startswith("warning: ")]
                self.assertEqual(len(said), 1, result.text)
                self.assertIn(
                    "step_%09d.h5 is damaged and was renamed to step_%09d.h5.damaged"
                    % (STEPS, STEPS),
                    said[0],
                )
                self.assertIn(
                    "resumed from run/checkpoints/step_%09d.h5" % (STEPS - 5), result.text
                )
                self.assertEqual(harness.digest(path), self.whole)


if __name__ == "__main__":
    harness.main(at_once=4)
