# SPDX-License-Identifier: Apache-2.0
"""Tests docs/tutorial.md: its commands run in their order and do what the page says.

Datasets are small and training is short. Left out are the commands of a batch system, which
slurm_test.py runs, quickstart.sh and make_bible.sh, whose datasets are made here.
"""

import os
import pathlib
import random
import re
import shlex
import shutil
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = [text for kind, text in FENCED if not kind]
COMMAND = re.compile(r"^(?:trireme [a-z]+|mpirun|rm|ls) .*$", re.MULTILINE)
SHORT = {"mlp.toml": "12 steps", "bible_gpt.toml": "2 steps", "fashion_resnet.toml": "2 steps"}
LAST_STEP = "step_000000012.h5"


def commands():
    """Returns the commands of the page as lists of words."""
    text = "\n".join(BLOCKS).replace(" \\\n  ", " ")
    return [shlex.split(line, comments=True) for line in COMMAND.findall(text)]


def shortened(words):
    """Returns the words of a command with less work."""
    words = [re.sub(r"step_\d+\.h5", LAST_STEP, word) for word in words]
    if "train" in words:
        deck = os.path.basename(words[words.index("train") + 1])
        words = [word for word in words if not word.startswith("run.stop=")]
        words = [w for w, after in zip(words, words[1:] + [""]) if (w, after) != ("--set", "--set")]
        words = words[:-1] if words[-1] == "--set" else words
        words += ["--set", "run.stop=" + SHORT[deck], "--set", "schedule.warmup=none"]
    if "generate" in words:
        words[words.index("--tokens") + 1] = "3"
    return words


class Tutorial(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        os.symlink(ROOT / "inputs", os.path.join(cls.folder, "inputs"))
        for seed, split in enumerate(("train", "validation", "test")):
            folder = os.path.join(cls.folder, "data/fashion", split)
            harness.make_dataset(folder, 1024, size=28, classes=10, seed=seed)
        rng = random.Random(1)
        text = "".join(rng.choice("etaoin shrdlu") for _ in range(120000))
        pathlib.Path(cls.folder, "book.txt").write_text(text)
        bible = ("--out", "data/bible/train", "--hold-out-out", "data/bible/validation")
        made = harness.run(
            "shard", "text", "book.txt", *bible, "--hold-out", "0.05", cwd=cls.folder
        )
        assert made.returncode == 0, made.text

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def run_words(self, words, code=0):
        result = harness.run_printed(words, self.folder)
        text = result.stdout + result.stderr
        self.assertEqual(result.returncode, code, "%s: %s" % (words, text))
        return text

    def test_commands(self):
        self.run_words(shortened(shlex.split("trireme train inputs/examples/fashion_resnet.toml")))
        digests, starts = [], 0
        for words in commands():
            words = shortened(words)
            if "run.name=stopped" in words:
                starts += 1
                if starts == 1:  # the page makes the file while the run trains
                    os.makedirs(os.path.join(self.folder, "runs/stopped"))
                    self.run_words(["touch", "runs/stopped/STOP"])
                    self.run_words(words, code=75)
                    continue
            if any("weight_deccay" in word for word in words):
                self.assertIn(self.run_words(words, code=2).strip(), PAGE)
                continue
            text = self.run_words(words)
            if "--digest" in words:
                digests.append(re.search(r"[0-9a-f]{16}", text)[0])
        self.assertEqual(starts, 2)
        self.assertEqual(len(digests), 2)
        self.assertEqual(digests[0], digests[1])

    def test_the_page_has_its_commands(self):
        done = {word for words in commands() for word in words[:6]}
        expected = {"train", "check", "inspect", "verify", "shard", "plan", "generate", "rm"}
        self.assertLessEqual(expected, done)
        self.assertIn("(sleep 5; touch runs/stopped/STOP) &\n", PAGE)


if __name__ == "__main__":
    unittest.main()
