# SPDX-License-Identifier: Apache-2.0
"""Tests that every deck of inputs/ fits the numbers of ranks that its head states.

The head has a line such as `# ranks: 8 64 512`. `trireme check` plans the run at each of them, with
small datasets in place of the deck's own.
"""

import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
DECKS = sorted((ROOT / "inputs").rglob("*.toml"))
RECIPES = [deck for deck in DECKS if deck.parent.name == "recipes"]
# The files of [data.hdf5], by deck.
FIELDS = {"fields": "fields:6000,64x64x1,values:2", "masks": "fields:1000,32x32x16,pixels:4"}


def head_of(deck):
    return re.match(r"(?:#.*\n)*", deck.read_text(encoding="utf-8"))[0]


def ranks_of(deck):
    """Returns the numbers of ranks that the head states, or nothing if it has no such line."""
    lines = re.findall(r"^# ranks:((?: \d+)+)$", head_of(deck), re.MULTILINE)
    return [int(number) for number in lines[0].split()] if len(lines) == 1 else []


def nodes_of_the_job_script():
    """Returns the number of nodes that the job script asks for, and its tasks on a node."""
    text = (ROOT / "slurm/train_64nodes.sh").read_text(encoding="utf-8")
    return [
        int(re.search(r"^#SBATCH --%s=(\d+)$" % option, text, re.MULTILINE)[1])
        for option in ("nodes", "ntasks-per-node")
    ]


class Inputs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        for split in ("train", "validation"):
            harness.make_dataset(os.path.join(cls.folder, "images", split), 64, size=28, classes=10)
        # The longest context of the decks is 2048.
        harness.make_text(os.path.join(cls.folder, "text"), words=10000)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def check(self, deck, ranks):
        text = deck.read_text(encoding="utf-8")
        data = "text" if 'kind = "gpt"' in text else "images"
        settings = ["data.drop_last=false", "precision.compute=float32"]
        for split in re.findall(r"^(train|validation|test) = ", text, re.MULTILINE):
            settings.append("data.%s=%s/%s" % (split, data, split.replace("test", "validation")))
        # The images here are gray.
        if "normalize" in text:
            settings.append("data.augment.normalize={ mean = [0.5], std = [0.5] }")
        if "rand_augment" in text:
            settings.append("data.augment.rand_augment=false")
        # An epoch has few steps here.
        if "warmup" in text:
            settings.append("schedule.warmup=1 step")
        if "milestones" in text:
            settings.append('schedule.milestones=["2 steps"]')
        words = [word for setting in settings for word in ("--set", setting)]
        if "[data.hdf5]" in text:
            words = ["--assume", FIELDS[deck.stem]]
        return harness.run("check", deck, "--ranks", ranks, *words, cwd=self.folder)

    def test_each_deck_fits_its_ranks(self):
        self.assertGreater(len(DECKS), 8)
        for deck in DECKS:
            with self.subTest(deck.name):
                self.assertTrue(ranks_of(deck), "no line such as: # ranks: 8 64 512")
                for ranks in ranks_of(deck):
                    result = self.check(deck, ranks)
                    self.assertEqual(result.returncode, 0, result.text)
                    self.assertRegex(result.stdout, r"(?m)^layout +%d rank" % ranks)

    def test_recipes_have_about_the_fastest_layout(self):
        """Compares each recipe that has a table [parallel] with the search, on H100 nodes."""
        wanted = {"[parallel]", 'kind = "gpt"'}
        laid_out = [deck for deck in RECIPES if wanted <= set(deck.read_text().splitlines())]
        self.assertGreaterEqual(len(laid_out), 3)
        for deck in laid_out:
            with self.subTest(deck.name):
                words = ["plan", deck, "--machine", "h100", "--json", "-"]
                words += ["--assume", "tokens:1000000000000,50257"]
                vocabulary = re.search(r"^vocabulary = (\d+)", deck.read_text(), re.MULTILINE)
                if vocabulary:
                    words[-1] = "tokens:1000000000000," + vocabulary[1]
                words += ["--ranks", ranks_of(deck)[0]]
                own, search = (
                    json.loads(harness.run(*words, *more, cwd=self.folder).stdout)
                    for more in ([], ["--search"])
                )
                self.assertTrue(own["memory"]["fits"])
                self.assertLessEqual(
                    own["step"]["seconds"], 1.1 * search["best"][0]["step_seconds"]
                )

    def test_each_recipe_fits_the_jobs_of_its_head(self):
        self.assertGreaterEqual(len(RECIPES), 6)
        nodes, tasks = nodes_of_the_job_script()
        for deck in RECIPES:
            jobs = re.findall(r"sbatch(?: --nodes=(\d+))? slurm/train_64nodes.sh", head_of(deck))
            self.assertTrue(jobs, deck.name)
            for given in jobs:
                self.assertIn(int(given or nodes) * tasks, ranks_of(deck), deck.name)

    def test_the_default_of_the_job_script_fits_a_node_too(self):
        self.assertEqual(ranks_of(ROOT / "inputs/recipes/resnet50_large_batch.toml"), [8, 64, 512])

    def test_the_commands_of_the_heads_use_these_ranks(self):
        for deck in DECKS:
            used = re.findall(r"(?:mpirun -n|--ranks) (\d+)", head_of(deck))
            self.assertLessEqual({int(number) for number in used}, set(ranks_of(deck)), deck.name)


if __name__ == "__main__":
    unittest.main()
