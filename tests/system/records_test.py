# SPDX-License-Identifier: Apache-2.0
"""Tests the records of a start: times of copies, software and hardware, and the deck."""

import json
import os
import pathlib
import shlex

import harness

EMULATED = ("--allow-faults", "--set", "debug.device=emulated")
FIVE = "checkpoints/step_000000005.h5"
SHORT = harness.DECK.replace('stop = "20 steps"', 'stop = "5 steps"').replace(
    '[schedule]\n', '[schedule]\nlength = "20 steps"\n'
)


class Records(harness.Case):
    samples = 320

    def setUp(self):
        super().setUp()
        self.write_deck(SHORT)

    def starts(self, folder="run"):
        with open(self.path(folder, "environment.json")) as file:
            return json.load(file)

    def text(self, *parts):
        return pathlib.Path(self.path(*parts)).read_text()

    def test_copies_to_a_device_are_timed(self):
        for every in ("1 step", "2 steps"):
            folder = "emulated-" + every[0]
            self.train(
                "--set", "run.folder=" + folder, "--set", "monitor.every=" + every, *EMULATED
            )
            rows = harness.read_rows(self.path(folder), "train")
            for row in rows:
                self.assertGreater(row["transfer_s"], 0)
            self.assertLess(sum(row["transfer_s"] for row in rows), rows[-1]["elapsed_s"])
        if not harness.DEVICE:
            self.train("--set", "run.folder=cpu")
            rows = harness.read_rows(self.path("cpu"), "train")
            self.assertEqual([row["transfer_s"] for row in rows], [0] * 5)

    def test_software_and_hardware(self):
        words = ("--set", "run.stop=3 steps")
        self.train(*words, ranks=2)
        (start,) = self.starts()
        self.assertEqual(
            shlex.split(start["command"]),
            harness.command("train", "deck.toml", *words, *harness.DEVICE),
        )
        for library in ("hdf5", "kokkos", "onednn"):
            self.assertRegex(start[library], r"^\d+\.\d+\.\d+$")
        self.assertRegex(start["mpi"], r"\d+\.\d+")
        self.assertEqual(start["ranks"], 2)
        self.assertEqual(len(start["hosts"]), 2)
        self.assertEqual(len(start["devices"]), 2)
        self.assertEqual(start["devices"][0], start["device"])
        self.assertEqual("driver" in start, start["device"].startswith("cuda:"))

    def test_rows_have_the_memory_in_use(self):
        """The first row comes before the first report; without a device there is one value."""
        for name, settings in (("host", ()), ("device", EMULATED)):
            if name == "host" and harness.DEVICE:
                continue
            self.train("--set", "run.folder=" + name, "--set", "monitor.every=1 step", *settings)
            first, *rows = harness.read_rows(self.path(name), "train")
            self.assertNotIn("memory_host_bytes", first)
            self.assertEqual(len(rows), 4)
            for row in rows:
                self.assertGreater(row["memory_host_bytes"], 1 << 20)
                if name == "device":
                    self.assertGreaterEqual(row["memory_device_bytes"], row["memory_bytes"])
                else:
                    self.assertNotIn("memory_device_bytes", row)
            log = self.text(name, "log.txt")
            self.assertRegex(log, r"memory in use, largest rank: .*host .*; planned ")
            self.assertEqual(", largest rank: device " in log, name == "device")

    def test_words_are_quoted_for_a_shell(self):
        deck = "it's a deck.toml"
        self.write_deck(SHORT, deck)
        self.train("--set", "run.stop=3 steps", deck=deck)
        (start,) = self.starts()
        self.assertEqual(
            shlex.split(start["command"]),
            harness.command("train", deck, "--set", "run.stop=3 steps", *harness.DEVICE),
        )

    def test_a_deck_of_the_user_in_the_run_folder_is_kept(self):
        given = self.text("deck.toml") + "# of the user\n"
        os.mkdir(self.path("run"))
        with open(self.path("run/deck.toml"), "w") as file:
            file.write(given)

        def train(*words):
            words = ("run/deck.toml", "--set", "run.folder=run", *words, *harness.DEVICE)
            result = harness.run("train", *words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            return result.text

        self.assertIn("kept as run/deck.toml.given", train())
        self.assertEqual(self.text("run/deck.toml.given"), given)
        # From now on the file is that of the program.
        self.assertNotIn("deck.toml.given", train("--set", "run.stop=10 steps"))
        self.assertEqual(self.text("run/deck.toml"), self.text("run/decks/0002.toml"))
        self.assertFalse(os.path.exists(self.path("run/deck.toml.given.2")))

    def test_kinds_of_start(self):
        self.train()
        self.train("--set", "run.stop=10 steps")
        self.train("--set", "run.stop=15 steps", "--restart", "none")
        self.train(
            "--set", "run.stop=6 steps", "--set", "run.folder=on", "--restart", "run/" + FIVE
        )
        self.train("--set", "run.folder=new", "--restart", "run/" + FIVE, "--weights-only")
        kinds = [
            [(start["restart"], start.get("checkpoint")) for start in self.starts(folder)]
            for folder in ("run", "on", "new")
        ]
        self.assertEqual(
            kinds,
            [
                [("fresh", None), ("resume", "run/" + FIVE), ("fresh", None)],
                [("file", "run/" + FIVE)],
                [("weights", "run/" + FIVE)],
            ],
        )

    def test_the_deck_of_every_start_is_kept(self):
        self.train()
        self.train("--set", "run.stop=10 steps")
        # Neither a start with nothing to do nor one that is refused has a deck of its own.
        self.train("--set", "run.stop=10 steps")
        self.train("--set", "run.stop=15 steps", "--set", "run.seed=8", expect=2)
        self.assertEqual(sorted(os.listdir(self.path("run/decks"))), ["0001.toml", "0002.toml"])
        self.assertEqual(
            [start["deck"] for start in self.starts()], ["decks/0001.toml", "decks/0002.toml"]
        )
        self.assertIn('stop = "5 steps"', self.text("run/decks/0001.toml"))
        self.assertIn('stop = "10 steps"', self.text("run/decks/0002.toml"))
        self.assertEqual(self.text("run/deck.toml"), self.text("run/decks/0002.toml"))
        for name in ("0001", "0002"):
            result = harness.run("check", "run/decks/%s.toml" % name, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
        # Numbers grow, also if somebody has deleted a file.
        os.remove(self.path("run/decks/0001.toml"))
        self.train("--set", "run.stop=15 steps")
        self.assertEqual(sorted(os.listdir(self.path("run/decks"))), ["0002.toml", "0003.toml"])

    def test_decks_that_is_no_folder_is_refused(self):
        os.makedirs(self.path("run"))
        self.write_deck("mine", "run/decks")
        self.assertIn("run/decks: is not a folder", self.train(ranks=2, expect=2).text)
        self.assertEqual(self.text("run/decks"), "mine")


if __name__ == "__main__":
    harness.main(at_once=2)
