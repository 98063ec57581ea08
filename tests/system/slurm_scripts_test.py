# SPDX-License-Identifier: Apache-2.0
"""Tests the decisions of the job scripts under slurm/, and those of chains.

Small programs replace the batch system and trireme, so no scheduler is needed.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import job_scripts


class Scripts(job_scripts.Case):
    def test_a_chain_goes_on_until_the_run_is_done(self):
        self.assertEqual(self.run_chain("75 100", "kill 200", "77 300", "0 400"), [75, 137, 77, 0])
        self.assertEqual(self.starts(), 4)
        self.assertEqual(self.text("cancelled").split(), ["5", "6", "7", "8"])
        log = self.text("runs/tiny/chain.log")
        self.assertEqual(
            [line.split("code=")[1] for line in log.splitlines() if " end " in line],
            ["75", "lost", "77", "0"],
        )

    def test_a_launchers_status_for_a_killed_rank_is_a_loss(self):
        """The rank may also be killed before it opened the log."""
        self.assertEqual(self.run_chain("75 100", "early 9", "early 137", "0 200"), [75, 9, 137, 0])

    def test_each_job_waits_for_the_one_before_it(self):
        result = self.chain(3, "--nodes=2", "--", "--set", "batch.global=64")
        words = self.jobs()
        self.assertEqual(
            [[word for word in job if word.startswith("--dependency")] for job in words],
            [[], ["--dependency=afterany:1"], ["--dependency=afterany:2"]],
        )
        for job in words:
            self.assertIn("--nodes=2", job)
            self.assertEqual(job[-3:], ["deck.toml", "--set", "batch.global=64"])
        self.assertIn("touch %s/STOP" % self.run_folder, result.stdout)

    def test_what_needs_a_person_ends_the_chain(self):
        for code in (1, 2, 76):
            with self.subTest(code=code):
                self.tearDown()
                self.setUp()
                self.assertEqual(self.run_chain("75 100", str(code)), [75, code])
                self.assertEqual(self.text("cancelled").split(), ["3", "4", "5", "6", "7", "8"])

    def test_a_file_written_anew_within_the_second_is_a_new_one(self):
        """The file system reuses the inode of a removed file at once."""
        marks = self.call(
            "bash",
            "-c",
            ". %s/lib/chain.sh; for at in 25 75; do touch -d 2026-01-01T00:00:00.$at exit.json; "
            "chain_mark exit.json; done" % job_scripts.SLURM,
        ).stdout.split()
        self.assertEqual(len(set(marks)), 2, marks)

    def test_a_program_that_does_not_get_to_the_run_folder_is_judged_by_its_status(self):
        """exit.json is then that of an earlier start, and is ignored."""
        self.assertEqual(self.run_chain("75 100", "early 2"), [75, 2])
        self.assertEqual(self.starts(), 2)

    def test_an_exit_record_that_says_nothing_counts_as_none(self):
        self.assertEqual(self.run_chain("torn 100", "0 200"), [75, 0])

    def test_a_start_that_another_job_refuses_ends_its_own_chain(self):
        """The log grows meanwhile, but the other job writes it: the program was not lost."""
        self.assertEqual(self.run_chain("75 100", "taken"), [75, 2])
        self.assertEqual(self.starts(), 2)

    def test_a_run_folder_that_was_moved_is_not_begun_anew(self):
        self.plan("75 100", "0 200")
        self.chain(4)
        self.assertEqual(self.run_jobs(1, 1), [75])
        os.rename(self.run_folder, self.run_folder + ".old")
        self.assertEqual(self.run_jobs(2, 2), [2])
        self.assertFalse(os.path.exists(self.run_folder))
        os.rename(self.run_folder + ".old", self.run_folder)
        self.assertEqual(self.run_jobs(3, 3), [0])

    def test_a_log_of_the_chain_that_cannot_be_written_starts_nothing(self):
        self.plan("0 100")
        self.chain(1)
        chain = self.text("runs/tiny/chain.log").split("chain=")[1].split()[0]
        script = (
            '. %s/lib/chain.sh; echo() { return 1; }; chain_begin "$1" "$2" 1 || printf '
            '"$chain_code: $chain_reason"'
        )
        self.assertRegex(
            self.call(
                "bash", "-uc", script % job_scripts.SLURM, "begin", self.run_folder, chain
            ).stdout,
            r"^1: .*chain.log cannot be written",
        )

    def test_nothing_is_written_through_a_log_of_the_chain_that_is_a_link(self):
        log, outside = self.path("runs/tiny/chain.log"), self.path("outside")
        for make in (
            lambda: os.symlink(outside, log),
            lambda: os.mkfifo(log),
            lambda: os.mkdir(log),
        ):
            shutil.rmtree(self.run_folder, ignore_errors=True)
            os.makedirs(self.run_folder)
            pathlib.Path(outside).write_text("precious")
            make()
            result = self.call(
                job_scripts.SLURM + "/chain.sh", "1", self.path("deck.toml"), expect=2
            )
            self.assertRegex(
                result.stdout,
                r"chain.log: is a link or not a file; remove it: nothing is submitted",
            )
            self.assertEqual(pathlib.Path(outside).read_text(), "precious")
        # A job of a chain whose log was replaced since.
        os.rmdir(log)
        self.plan("0 100")
        self.chain(1)
        os.rename(log, outside)
        os.symlink(outside, log)
        before = pathlib.Path(outside).read_text()
        self.assertEqual(self.run_jobs(1, 1), [1])
        self.assertEqual(pathlib.Path(outside).read_text(), before)

    def test_another_name_of_the_log_of_a_chain_keeps_its_content(self):
        log, backup = self.path("runs/tiny/chain.log"), self.path("backup")
        self.plan("0 100")
        self.chain(1)
        os.link(log, backup)
        before = pathlib.Path(backup).read_text()
        self.assertEqual(self.run_jobs(1, 1), [0])
        self.assertEqual(pathlib.Path(backup).read_text(), before)
        self.assertIn(" end job=1 ", pathlib.Path(log).read_text())

    def test_other_names_beside_the_checkpoints_do_not_count(self):
        os.makedirs(self.path("runs/tiny/checkpoints"))
        for name in (
            "step_000000900_copy.h5",
            "step_last.h5",
            "step_.h5",
            "step_000000008.h5.damaged",
        ):
            pathlib.Path(self.path("runs/tiny/checkpoints", name)).touch()
        self.assertEqual(
            self.run_chain("75 8", "75 999999999", "75 1000000000", "0 1000000001"), [75, 75, 75, 0]
        )
        begun = [
            line.split("newest=")[1].split()[0]
            for line in self.text("runs/tiny/chain.log").splitlines()
            if " begin " in line
        ]
        self.assertEqual(begun, ["none", "8", "999999999", "1000000000"])

    def test_names_with_blanks(self):
        self.run_folder = self.environment["RUN"] = self.path("runs/zwei Wörter")
        os.rename(self.path("deck.toml"), self.path("my deck.toml"))
        self.plan("75 100", "0 200")
        self.chain(3, "--", "--set", "run.folder=" + self.run_folder, deck="my deck.toml")
        self.assertEqual(self.run_jobs(), [75, 0])
        self.assertIn("code=0", self.text("runs/zwei Wörter/chain.log"))
        self.assertEqual(self.text("cancelled").split(), ["3"])

    def test_jobs_that_the_batch_system_does_not_take_are_told(self):
        self.assertIn("nothing is submitted", self.chain(3, expect=1, REFUSED="1").stdout)
        self.assertIn("nothing is submitted", self.chain(3, expect=1, SILENT="1").stdout)
        for reason in ("REFUSED", "SILENT"):
            with self.subTest(reason):
                self.tearDown()
                self.setUp()
                self.assertIn(
                    "no more than 2 of 5 jobs", self.chain(5, expect=1, **{reason: "3"}).stdout
                )
                self.plan("75 100", "75 200")
                self.assertEqual(self.run_jobs(), [75, 75])  # these two are in the queue

    def test_what_a_site_prints_before_the_number_of_a_job_is_none(self):
        self.chain(2, GREETING="Welcome to the machine")
        self.assertIn("--dependency=afterany:1", self.jobs()[1])

    def test_three_starts_without_a_checkpoint_end_the_chain(self):
        self.assertEqual(
            self.run_chain("75 100", "kill", "kill", "kill", "kill"), [75, 137, 137, 137, 1]
        )
        self.assertEqual(self.starts(), 4)
        self.assertEqual(self.text("cancelled").split(), ["6", "7", "8"])

    def test_three_starts_without_a_checkpoint_end_a_chain_that_never_had_one(self):
        self.assertEqual(self.run_chain("kill", "77", "kill", "kill"), [137, 77, 137, 1])
        self.assertEqual(self.starts(), 3)

    def test_a_checkpoint_in_between_is_a_new_beginning(self):
        self.assertEqual(
            self.run_chain("kill", "kill 10", "kill", "kill", "kill 20", "0 30"),
            [137, 137, 137, 137, 137, 0],
        )

    def test_a_job_that_vanished_with_its_script_is_lost(self):
        """Nobody logged its end: the next job finds a `begin` without an `end`."""
        self.plan("75 100", "0 200")
        self.chain(3)
        chain = self.text("runs/tiny/chain.log").split("chain=")[1].split()[0]
        with open(self.path("runs/tiny/chain.log"), "a") as file:
            file.write(
                "2000-01-01T00:00:00Z chain=%s begin job=0 newest=none exit=- log=-\n" % chain
            )
        self.assertEqual(self.run_jobs(), [75, 0])

    def test_a_job_that_vanished_after_the_last_step_starts_nothing_more(self):
        self.plan()
        self.chain(2)
        chain = self.text("runs/tiny/chain.log").split("chain=")[1].split()[0]
        with open(self.path("runs/tiny/chain.log"), "a") as file:
            file.write(
                "2000-01-01T00:00:00Z chain=%s begin job=0 newest=none exit=- log=-\n" % chain
            )
        pathlib.Path(self.path("runs/tiny/exit.json")).write_text(
            json.dumps({"start": "x", "code": 0, "reason": ""}, indent=2)
        )
        self.assertEqual(self.run_jobs(), [0])
        self.assertEqual(self.starts(), 0)

    def test_a_stop_file_ends_the_chain_and_refuses_another(self):
        self.assertEqual(self.run_chain("75 100", "stop 200"), [75, 75])
        self.assertEqual(self.text("cancelled").split(), ["3", "4", "5", "6", "7", "8"])
        submitted = self.text("jobs")
        self.assertIn("STOP", self.chain(2, expect=2).stdout)
        self.assertEqual(self.text("jobs"), submitted)

    def test_a_stop_file_made_in_the_queue_starts_nothing(self):
        self.plan("0 100")
        self.chain(2)
        pathlib.Path(self.path("runs/tiny/STOP")).touch()
        self.assertEqual(self.run_jobs(), [75])
        self.assertEqual(self.starts(), 0)

    def test_an_older_chain_in_the_same_folder_does_not_count(self):
        self.run_chain("kill", "kill", "kill", "kill")
        for name in ("jobs", "cancelled", "starts"):
            os.remove(self.path(name))
        self.assertEqual(self.run_chain("0 10"), [0])

    def test_the_deck_is_checked_as_it_is_trained(self):
        changes = ["--unset", "schedule.warmup", "--set=run.seed=2", "--set", "batch.global=64"]
        self.chain(1, "--", "--restart", "auto", *changes, "--unset=data.test")
        expected = ["check", "deck.toml", *changes, "--unset=data.test"]
        self.assertEqual(self.text("checks").split(), expected)

    def test_a_removed_key_has_no_value(self):
        for options, value in (
            ("", "data/validation"),
            ("--unset data.test", "data/validation"),
            ("--unset data.validation", ""),
            ("--unset=data.validation", ""),
            ("--unset data.validation --set data.validation=other", "other"),
        ):
            result = self.call(
                "bash",
                "-c",
                "home=%s; . $home/lib/job.sh; deck_value deck.toml data validation %s"
                % (job_scripts.SLURM, options),
            )
            self.assertEqual(result.stdout.strip(), value, options)

    def test_a_bad_deck_is_found_before_the_queue(self):
        pathlib.Path(self.path("deck.toml")).write_text("bad")
        self.assertIn("bad deck", self.chain(2, expect=2).stdout)
        self.assertEqual(self.text("jobs"), "")

    def test_wrong_words_are_told(self):
        for words, part in (
            (("many", "deck.toml"), "how many jobs"),
            (("3",), "which deck"),
            (("3", "nodeck.toml"), "no such deck"),
        ):
            self.assertIn(part, self.call(job_scripts.SLURM + "/chain.sh", *words, expect=2).stdout)
        self.assertIn(
            "perlmutter",
            self.call(
                job_scripts.SLURM + "/chain.sh", "3", "deck.toml", expect=2, TRIREME_SITE="nowhere"
            ).stdout,
        )

    def test_the_job_asks_srun_for_what_it_needs(self):
        self.assertEqual(self.run_chain("0 100", jobs=1), [0])
        launch = self.text("launches")
        for word in ("--kill-on-bad-exit=1", "--gpu-bind=none"):
            self.assertIn(word, launch)

    def test_a_signal_to_the_job_reaches_the_program(self):
        self.plan("wait 100")
        process = subprocess.Popen(
            [job_scripts.SLURM + "/train_64nodes.sh", "deck.toml"],
            cwd=self.folder,
            env={**self.environment, "SLURM_JOB_ID": "7"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not os.path.exists(self.path("waiting")) and process.poll() is None:
            time.sleep(0.01)
        # SIGUSR2 is passed on and ends nothing.
        process.send_signal(signal.SIGUSR2)
        while not os.path.exists(self.path("reported")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        text, _ = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 75, text)

    def test_a_site_gives_options_that_the_command_line_overrides(self):
        self.call(
            job_scripts.SLURM + "/chain.sh",
            "1",
            "deck.toml",
            "--cpus-per-task=4",
            TRIREME_SITE="perlmutter",
            TRIREME_NODES="3",
        )
        words = self.jobs()[0]
        self.assertIn("--constraint=gpu", words)
        self.assertIn("--nodes=3", words)
        # Sbatch uses the last of equal options.
        self.assertLess(words.index("--cpus-per-task=32"), words.index("--cpus-per-task=4"))
        self.assertEqual(words[words.index("--site") + 1], "perlmutter")

    def test_outside_a_job_the_job_script_submits_itself(self):
        self.call(
            job_scripts.SLURM + "/train_64nodes.sh",
            "deck.toml",
            TRIREME_NODES="2",
            TRIREME_SITE="leonardo_booster",
        )
        words = self.jobs()[0]
        self.assertIn("--nodes=2", words)
        self.assertIn("--partition=boost_usr_prod", words)
        self.assertEqual(words[-1], "deck.toml")

    def test_pbs(self):
        pathlib.Path(self.path("nodes")).write_text("a\na\nb\nb\n")
        self.plan("75 100", "0 200")
        self.call(
            job_scripts.SLURM + "/pbs/chain.sh",
            "3",
            "deck.toml",
            "-l",
            "select=2:mpiprocs=2",
            "-l",
            "walltime=1:00:00",
            "--",
            "--set",
            "run.name=a b",
            SUFFIX=".server",
        )
        self.assertIn("depend=afterany:1.server", self.jobs()[1])
        self.assertIn("walltime=1:00:00", self.jobs()[0])
        statuses = []
        for number in (1, 2):
            statuses.append(
                self.call(
                    "bash",
                    self.path("script.%d" % number),
                    expect=None,
                    PBS_JOBID="%d.server" % number,
                    PBS_NODEFILE=self.path("nodes"),
                ).returncode
            )
        self.assertEqual(statuses, [75, 0])
        self.assertEqual(self.text("launches").split()[:2], ["-n", "4"])
        self.assertIn("--set run.name=a b", self.text("starts"))
        self.assertEqual(self.text("cancelled").split(), ["3.server"])

    def test_flux(self):
        pathlib.Path(self.path("bin/flux")).write_text(r"""#!/bin/bash
case "$1 $2" in
  "getattr size") echo 2 ;;
  "getattr jobid") echo "$FLUX_TEST_JOB" ;;
  "getattr parent-uri") echo local:///parent ;;
  cancel*) echo "$FLUX_URI" >>"$LOG/parent"; shift; exec scancel "$@" ;;
  batch*) shift; exec sbatch "$@" ;;
  run*) exec srun "$@" ;;
esac
""")
        os.chmod(self.path("bin/flux"), 0o755)
        self.plan("75 100", "0 200")
        self.call(
            job_scripts.SLURM + "/flux/chain.sh", "3", "deck.toml", "-N2", "-t", "1h", SUFFIX="f"
        )
        jobs = self.jobs()
        self.assertIn("--dependency=afterany:1f", jobs[1])
        statuses = []
        for number in (1, 2):
            words = jobs[number - 1]
            at = next(i for i, word in enumerate(words) if word.endswith("train.sh"))
            statuses.append(
                self.call(
                    "bash",
                    words[at],
                    *words[at + 1 :],
                    expect=None,
                    FLUX_TEST_JOB="%df" % number,
                    FLUX_URI="local:///job",
                    TRIREME_TASKS_PER_NODE="4"
                ).returncode
            )
        self.assertEqual(statuses, [75, 0])
        self.assertIn("run -N 2 --tasks-per-node=4", self.text("launches"))
        self.assertEqual(self.text("cancelled").split(), ["3f"])
        self.assertEqual(self.text("parent").split(), ["local:///parent"])


if __name__ == "__main__":
    unittest.main()
