# SPDX-License-Identifier: Apache-2.0
"""Tests which deck and which data a job script under slurm/ uses: the default, missing folders, and
copies on the disks of the nodes.

Small programs replace the batch system and trireme, so no scheduler is needed.
"""

import os
import pathlib
import re
import shutil
import unittest

import job_scripts


class Data(job_scripts.Case):
    def test_without_a_deck_the_job_trains_resnet_50(self):
        recipe = os.path.join(
            os.path.dirname(job_scripts.SLURM), "inputs/recipes/resnet50_large_batch.toml"
        )
        for name in ("train", "validation"):
            os.makedirs(self.path("data/imagenet", name))
        self.plan("0 100", "0 100", "0 100")
        self.call(job_scripts.SLURM + "/train_64nodes.sh", SLURM_JOB_ID="9")
        self.call(job_scripts.SLURM + "/train_64nodes.sh", "--set", "run.seed=3", SLURM_JOB_ID="9")
        self.call(
            job_scripts.SLURM + "/train_64nodes.sh", SLURM_JOB_ID="9", TRIREME_DECK="deck.toml"
        )
        self.assertEqual(
            self.text("starts").splitlines(),
            ["train " + recipe, "train %s --set run.seed=3" % recipe, "train deck.toml"],
        )

    def test_a_deck_that_does_not_exist_is_refused(self):
        result = self.call(
            job_scripts.SLURM + "/train_64nodes.sh", "no.toml", expect=2, SLURM_JOB_ID="9"
        )
        self.assertRegex(result.stdout, "no.toml: no such deck .*TRIREME_DECK")

    def test_missing_data_start_nothing_and_the_commands_that_make_them_are_printed(self):
        recipes = sorted(pathlib.Path(job_scripts.SLURM).parent.glob("inputs/recipes/*.toml"))
        self.assertGreaterEqual(len(recipes), 3)
        for recipe in recipes:
            result = self.call(
                job_scripts.SLURM + "/train_64nodes.sh", str(recipe), expect=2, SLURM_JOB_ID="9"
            )
            for name in ("train", "validation"):
                folder = re.search(r'^%s = "(.*)"' % name, recipe.read_text(), re.MULTILINE)[1]
                self.assertIn("data.%s = %s: no such folder" % (name, folder), result.stdout)
                self.assertRegex(result.stdout, r"(?m)^  .*(trireme shard|python3) .*")
                # The folder is in a command too.
                self.assertRegex(result.stdout, r"(?m)^   *.* %s(?: \\)?$" % re.escape(folder))
            self.assertNotIn("2. Check", result.stdout)
        shutil.rmtree(self.path("data"))
        result = self.call(
            job_scripts.SLURM + "/train_64nodes.sh", "deck.toml", expect=2, SLURM_JOB_ID="9"
        )
        self.assertIn("trireme shard --help", result.stdout)
        self.assertEqual(self.text("launches"), "")

    def test_data_that_the_command_line_names_are_looked_for(self):
        shutil.rmtree(self.path("data/validation"))
        self.plan("0 100", "0 100")
        for value in ("data/train", '"data/train"'):
            self.call(
                job_scripts.SLURM + "/train_64nodes.sh",
                "deck.toml",
                "--set",
                "data.validation=" + value,
                SLURM_JOB_ID="9",
            )
        result = self.call(
            job_scripts.SLURM + "/train_64nodes.sh",
            "deck.toml",
            "--set=data.validation=none",
            expect=2,
            SLURM_JOB_ID="9",
        )
        self.assertIn("data.validation = none: no such folder", result.stdout)
        self.assertEqual(self.starts(), 2)

    def test_data_that_vanished_end_the_chain(self):
        self.plan("75 100")
        self.chain(4)
        self.assertEqual(self.run_jobs(1, 1), [75])
        shutil.rmtree(self.path("data/train"))
        self.assertEqual(self.run_jobs(2), [2])
        self.assertEqual(self.starts(), 1)
        self.assertEqual(self.text("cancelled").split(), ["3", "4"])

    def test_the_nodes_are_examined_first(self):
        def job(**environment):
            self.plan("0 100")
            return self.call(
                job_scripts.SLURM + "/train_64nodes.sh",
                "deck.toml",
                "--set",
                "run.folder=data/new/run",
                SLURM_JOB_ID="9",
                **environment
            )

        for choice, sick, code, starts in (
            ("", "1", 0, 1),
            ("report", "1", 0, 2),
            ("strict", "1", 1, 2),
            ("strict", "0", 0, 3),
        ):
            result = job(expect=code, TRIREME_DOCTOR=choice, SICK=sick)
            self.assertEqual(self.starts(), starts, choice)
            self.assertEqual("problem  cores" in result.stdout, choice != "", result.stdout)
        # The nearest folder above the run folder that exists.
        self.assertEqual(self.text("examinations"), "doctor --folder data\n" * 3)
        refused = job(expect=2, TRIREME_DOCTOR="yes")
        self.assertIn("TRIREME_DOCTOR = yes: must be report or strict", refused.stdout)

    def test_a_sick_node_ends_a_strict_chain(self):
        self.plan("75 100", "75 200")
        self.chain(3)
        self.environment["TRIREME_DOCTOR"] = "strict"
        self.assertEqual(self.run_jobs(1, 1), [75])
        self.environment["SICK"] = "1"
        self.assertEqual(self.run_jobs(2), [1])
        self.assertEqual(self.starts(), 1)
        self.assertEqual(self.text("cancelled").split(), ["3"])

    def test_data_are_staged_and_the_run_reads_them_there(self):
        for name in ("train", "validation"):
            pathlib.Path(self.path("data", name, "a.h5")).write_text(name)
        self.plan("0 100")
        stage = self.path("disk")
        seen = self.path("seen")
        program = self.path("bin/trireme")
        text = (
            pathlib.Path(program)
            .read_text()
            .replace(
                "read -r code", 'cat "%s"/trireme-9/*/a.h5 >"%s"\nread -r code' % (stage, seen), 1
            )
        )
        pathlib.Path(program).write_text(text)
        self.call(
            job_scripts.SLURM + "/train_64nodes.sh",
            "deck.toml",
            "--set",
            "data.train=data/train",
            "--set",
            "run.seed=3",
            SLURM_JOB_ID="9",
            TRIREME_STAGE=stage,
        )
        self.assertEqual(self.text("seen"), "trainvalidation")
        self.assertEqual(
            self.text("starts").split(),
            [
                "train",
                "deck.toml",
                "--set",
                "run.seed=3",
                "--set",
                "data.train=%s/trireme-9/train" % stage,
                "--set",
                "data.validation=%s/trireme-9/validation" % stage,
            ],
        )
        self.assertFalse(os.path.exists(stage + "/trireme-9"))

    def test_a_signal_while_data_are_copied_ends_the_job_in_order(self):
        pathlib.Path(self.path("data/train/a.h5")).touch()
        launch = pathlib.Path(self.path("bin/srun"))
        launch.write_text(
            launch.read_text().replace("exec ", '[ "$4" != stage ] || kill -USR1 $PPID\nexec ', 1)
        )
        self.plan("0 100")
        result = self.call(
            job_scripts.SLURM + "/train_64nodes.sh",
            "deck.toml",
            expect=75,
            SLURM_JOB_ID="9",
            TRIREME_STAGE=self.path("disk"),
        )
        self.assertIn("before the program has started", result.stdout)
        self.assertEqual(self.starts(), 0)
        self.assertEqual(os.listdir(self.path("disk")), [])

    def test_data_that_do_not_fit_stay_where_they_are(self):
        self.plan("0 100")
        pathlib.Path(self.path("bin/df")).write_text("#!/bin/sh\nprintf 'Avail\\n5\\n'\n")
        os.chmod(self.path("bin/df"), 0o755)
        result = self.call(
            job_scripts.SLURM + "/train_64nodes.sh",
            "deck.toml",
            SLURM_JOB_ID="9",
            TRIREME_STAGE=self.path("disk"),
        )
        self.assertIn("stays where it is", result.stdout)
        self.assertEqual(self.text("starts").split(), ["train", "deck.toml"])


if __name__ == "__main__":
    unittest.main()
