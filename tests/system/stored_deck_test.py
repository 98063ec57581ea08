# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints whose decks have keys without effect.

tests/data/keys_without_effect.h5 was written by an earlier program, which stored every key of a
deck with its default. That program trained DECK for two steps on tests/data/text.txt.
"""

import json
import os
import shutil
import tempfile
import unittest

import harness

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHECKPOINT = os.path.join(TESTS, "data", "keys_without_effect.h5")
# Each of its settings for device, walltime and skip_nonfinite takes the effect from other keys.
DECK = """
[run]
name = "stored"
folder = "run"
device = "cpu"
walltime = "none"
stop = "2 steps"
[model]
kind = "gpt"
layers = 1
heads = 1
width = 4
context = 64
[data]
train = "text/train"
workers = 1
[batch]
global = 16
micro = 8
[optimizer]
kind = "adamw"
[schedule]
kind = "constant"
rate = 1e-2
[checkpoint]
every = "2 steps"
[health]
skip_nonfinite = false
[monitor]
every = "1 step"
tensorboard = false
"""
KEYS = [
    "run.graphs",
    "run.walltime_margin",
    "optimizer.decay_all",
    "schedule.base_batch",
    "evaluate.every",
    "health.rollback_after",
    "health.rollbacks",
]
DROPPED = "%s: keys of its deck that have no effect are dropped: " + ", ".join(KEYS)
FIRST, LAST = "run/checkpoints/step_000000002.h5", "run/checkpoints/step_000000004.h5"


class StoredDeck(unittest.TestCase):
    def setUp(self):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.write("deck.toml", DECK)
        self.command(
            "shard", "text", os.path.join(TESTS, "data", "text.txt"), "--out", "text/train"
        )

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)

    def command(self, *arguments, expect=0):
        result = harness.run(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, expect, "%s: %s" % (arguments, result.text))
        return result

    def assert_dropped(self, result, path):
        """Asserts that one line of stderr names the dropped keys."""
        lines = [line for line in result.stderr.splitlines() if "no effect" in line]
        self.assertEqual(lines, [DROPPED % path])

    def put_into_run_folder(self):
        os.makedirs(self.path("run/checkpoints"))
        shutil.copy(CHECKPOINT, self.path(FIRST))

    def stored_keys(self, path):
        """Returns the keys of the deck in a checkpoint, as in "run.name"."""
        deck = json.loads(self.command("inspect", "--json", path).stdout)["deck"]
        keys, table = [], ""
        for line in deck.splitlines():
            if line.startswith("["):
                table = line.strip("[]")
            elif " = " in line:
                keys.append(table + "." + line.split(" = ")[0])
        return deck, keys

    def test_the_stored_checkpoint_has_all_these_keys(self):
        deck, keys = self.stored_keys(CHECKPOINT)
        self.assertEqual([key for key in keys if key in KEYS], KEYS)
        # The same deck of a user is refused, and the message names each of them.
        self.write("stored.toml", deck)
        errors = self.command("check", "stored.toml", expect=2).stderr
        for table, key in (path.split(".") for path in KEYS):
            self.assertRegex(errors, r"stored.toml:\d+:\d+: \[%s\] %s: belongs to " % (table, key))
        self.assertEqual(errors.count("belongs to"), len(KEYS), errors)

    def test_a_run_resumes(self):
        self.put_into_run_folder()
        result = self.command("train", "deck.toml", "--set", "run.stop=4 steps")
        self.assert_dropped(result, FIRST)
        self.assertIn("resumed from %s (step 2)" % FIRST, result.text)
        # A key that is dropped is no change of the deck.
        changes = [line for line in result.stderr.splitlines() if "changed since" in line]
        self.assertEqual(
            changes, ['changed since the checkpoint: run.stop: "2 steps" -> "4 steps"']
        )
        steps = [row["step"] for row in harness.read_rows(self.path("run"), "train")]
        self.assertEqual(steps, [3, 4])
        _, keys = self.stored_keys(LAST)
        self.assertEqual([key for key in keys if key in KEYS], [])
        result = self.command("train", "deck.toml", "--set", "run.stop=6 steps")
        self.assertIn("resumed from %s (step 4)" % LAST, result.text)
        self.assertNotIn("no effect", result.text)

    def test_a_finished_run_has_nothing_to_do(self):
        self.put_into_run_folder()
        self.assert_dropped(self.command("train", "deck.toml"), FIRST)
        # The second start knows from exit.json that the first one has done everything.
        self.command("train", "deck.toml")
        self.assertEqual(os.listdir(self.path("run/checkpoints")), [os.path.basename(FIRST)])

    def test_a_run_starts_from_its_weights(self):
        result = self.command("train", "deck.toml", "--restart", CHECKPOINT, "--weights-only")
        self.assert_dropped(result, CHECKPOINT)
        self.assertIn("weights only", result.text)

    def test_it_is_evaluated_and_continues_a_text(self):
        self.command("export", CHECKPOINT, "--out", "weights.safetensors")
        self.command("import", "weights.safetensors", "deck.toml", "--out", "imported.h5")

        def evaluate(path):
            return self.command("evaluate", "deck.toml", "--checkpoint", path, "--split", "train")

        def generate(path):
            return self.command("generate", path, "--prompt", "In the beginning", "--tokens", 20)

        for command in (evaluate, generate):
            result, imported = command(CHECKPOINT), command("imported.h5")
            self.assert_dropped(result, CHECKPOINT)
            self.assertEqual(result.stdout, imported.stdout)
            self.assertNotIn("no effect", imported.text)


if __name__ == "__main__":
    unittest.main()
