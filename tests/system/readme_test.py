# SPDX-License-Identifier: Apache-2.0
"""Tests README.md and the heads of inputs/examples/*.toml as printed: deck, commands, and the
message of a mistake."""

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
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "inputs/examples").glob("*.toml"))
COMMAND = re.compile(
    r"^(?:#   )?((?:mpirun -n \d+ )?(?:build/release/bin/)?trireme [a-z]+ .*)$", re.MULTILINE
)
CONTINUATION = re.compile(r" *\\\n#? *")  # joins the lines of one command
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands():
    """Returns the commands of the pages, each once, as lists of words. Those that make data come
    first."""
    pages = [text for kind, text in FENCED if not kind] + [
        re.match(r"(?:#.*\n)*", deck.read_text(encoding="utf-8"))[0] for deck in EXAMPLES
    ]
    lines = [
        re.sub(r"^(mpirun -n \d+ )?build/release/bin/", r"\1", line)
        for page in pages
        for line in COMMAND.findall(CONTINUATION.sub(" ", page))
    ]
    return sorted(
        (shlex.split(line, comments=True) for line in dict.fromkeys(lines)),
        key=lambda words: "shard" not in words,
    )


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        cls.folder = tempfile.mkdtemp(prefix="trireme-test-")
        os.symlink(ROOT / "inputs", os.path.join(cls.folder, "inputs"))
        for seed, (split, samples) in enumerate((("train", 256), ("validation", 64), ("test", 64))):
            harness.make_dataset(
                os.path.join(cls.folder, "data/fashion", split),
                samples,
                size=28,
                classes=10,
                seed=seed,
            )
        rng = random.Random(1)
        text = " ".join(
            "".join(rng.choice("etaoinshrdlu") for _ in range(rng.randrange(2, 8)))
            for _ in range(2500)
        )
        for name in ("bible.txt", "book.txt"):
            pathlib.Path(cls.folder, name).write_text(text)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def run_words(self, words):
        return harness.run_printed(words, self.folder)

    def test_commands(self):
        """Runs every command. Training and text generation are shortened, and their results are not
        checked."""
        done = []
        for words in commands():
            if "shard" in words:  # two pages make the same folder
                for option in ("--out", "--hold-out-out"):
                    shutil.rmtree(
                        os.path.join(self.folder, words[words.index(option) + 1]),
                        ignore_errors=True,
                    )
            if "train" in words:
                words += ["--set", "run.stop=2 steps", "--set", "schedule.warmup=none"]
            if "generate" in words:
                words[words.index("--tokens") + 1] = "3"
            if "report" in words and not os.path.exists(self.folder + "/runs/fashion"):
                # quickstart.sh has made it.
                shutil.copytree(self.folder + "/runs/second", self.folder + "/runs/fashion")
            result = self.run_words(words)
            self.assertEqual(
                result.returncode, 0, "%s: %s" % (words, result.stdout + result.stderr)
            )
            done.append(next(word for word in words[words.index("trireme") + 1 :]))
        self.assertEqual(set(done), {"shard", "check", "train", "report", "generate"})

    def test_deck_is_valid_and_a_wrong_key_is_named(self):
        decks = [text for kind, text in FENCED if kind == "toml"]
        self.assertEqual(len(decks), 1)
        path = pathlib.Path(self.folder, "deck.toml")
        path.write_text(decks[0])
        result = self.run_words(["trireme", "check", "deck.toml"])
        self.assertEqual(result.returncode, 0, result.stderr)
        path.write_text(decks[0].replace("weight_decay", "weight_deccay"))
        result = self.run_words(["trireme", "check", "deck.toml"])
        line = decks[0][: decks[0].index("weight_decay")].count("\n") + 1
        message = 'deck.toml:%d:1: [optimizer] weight_deccay: unknown key, did you mean ' % line
        self.assertEqual((result.returncode, result.stderr), (2, message + '"weight_decay"?\n'))


if __name__ == "__main__":
    unittest.main()
