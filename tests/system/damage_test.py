# SPDX-License-Identifier: Apache-2.0
"""Tests damaged checkpoints: cut short, or with one changed byte anywhere.

The damage is found, the file is set aside with a message, and the previous checkpoint is used.
"""

import json
import os
import random
import shutil

import harness
from safe_harbour_test import EIO


def change(path, place, difference=1):
    """Changes one byte of a file. A second call restores it."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ difference]))


class Damage(harness.Case):
    def setUp(self):
        super().setUp()
        self.train("--set", "run.stop=15 steps")
        self.newest = self.path("run/checkpoints/step_000000015.h5")

    def test_one_changed_byte_anywhere_is_found(self):
        """Tests some positions; tests/unit/checkpoint/seal_test.cpp tries a thousand in one
        process."""
        size = os.path.getsize(self.newest)
        rng = random.Random(5)
        places = [0, 7, 8, 511, 512, size - 1] + [rng.randrange(size) for _ in range(44)]
        for place in places:
            difference = rng.randrange(1, 256)
            change(self.newest, place, difference)
            result = harness.run("verify", self.newest)
            change(self.newest, place, difference)
            self.assertEqual(result.returncode, 2, "byte %d of %d: %s" % (place, size, result.text))
            self.assertIn("step_000000015.h5", result.text)
        self.assertEqual(harness.run("verify", self.newest).returncode, 0)

    def check_passed_over(self, ranks=1):
        result = self.train("--set", "run.stop=20 steps", ranks=ranks)
        self.assertIn("step_000000015.h5", result.text)
        self.assertIn("resumed from run/checkpoints/step_000000010.h5", result.text)
        self.assertTrue(os.path.exists(self.newest))  # written again by the resumed run
        self.assertTrue(
            [name for name in os.listdir(self.path("run/checkpoints")) if "damaged" in name]
        )

    def test_a_flipped_bit_is_passed_over(self):
        change(self.newest, os.path.getsize(self.newest) // 2)
        self.check_passed_over(ranks=2)

    def test_a_file_cut_short_is_passed_over(self):
        os.truncate(self.newest, os.path.getsize(self.newest) * 2 // 3)
        self.check_passed_over()

    def test_an_empty_file_is_passed_over(self):
        os.truncate(self.newest, 0)
        self.check_passed_over()

    def test_a_zeroed_file_is_passed_over(self):
        size = os.path.getsize(self.newest)
        with open(self.newest, "wb") as file:
            file.write(bytes(size))
        self.check_passed_over()

    def test_a_folder_of_checkpoints_is_described(self):
        change(self.newest, 5000)
        result = harness.run("inspect", "run/checkpoints", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        for words in (
            "folder of checkpoints",
            "newest checkpoint run/checkpoints/step_000000010.h5 (step 10)",
            "damaged: run/checkpoints/step_000000015.h5",
        ):
            self.assertIn(words, result.stdout)

    def test_a_disk_that_fails_under_hdf5_itself_ends_the_run_with_1(self):
        """Tests that HDF5 cannot create or close its file. It must not try again when the process
        or MPI ends."""
        everywhere = EIO.replace("place < 100000", "0")
        self.assertNotEqual(everywhere, EIO)
        for name, source, words in (
            ("made", everywhere, "cannot be created"),
            ("closed", EIO, "closing an HDF5 object"),
        ):
            library = self.preloaded(name, source)
            for way in ("true", "false"):
                with self.subTest(what=name, asynchronous=way):
                    folder = name + way
                    result = harness.run(
                        "train",
                        "deck.toml",
                        "--set",
                        "run.folder=" + folder,
                        "--set",
                        "checkpoint.async=" + way,
                        ranks=2,
                        cwd=self.folder,
                        env={"LD_PRELOAD": library, "TRIREME_TEST_EIO": "write"},
                    )
                    if harness.ended_by_hdf5(result):
                        self.assertEqual(harness.checkpoints(self.path(folder)), [])
                        continue
                    self.assertEqual(result.returncode, 1, result.text)
                    self.assertIn(words, result.text)
                    self.assertEqual(
                        len([line for line in result.text.splitlines() if "error: " in line]),
                        1,
                        result.text,
                    )
                    self.assertEqual(os.listdir(self.path(folder, "checkpoints")), [])
                    with open(self.path(folder, "exit.json")) as file:
                        self.assertEqual(json.load(file)["code"], 1)

    def test_a_temporary_file_is_never_taken(self):
        shutil.copy(self.newest, self.path("run/checkpoints/step_000000099.h5.tmp"))
        result = self.train("--set", "run.stop=20 steps")
        self.assertIn("step_000000015.h5", result.text)

    def test_a_folder_without_a_whole_checkpoint_is_never_begun_anew(self):
        for name in harness.checkpoints(self.path("run")):
            change(self.path("run/checkpoints", name), 4000)
        result = self.train("--set", "run.stop=20 steps", expect=2, ranks=2)
        self.assertIn("--restart none", result.text)
        self.assertEqual(result.text.count("--restart none"), 1)
        self.train("--set", "run.stop=20 steps", "--restart", "none")


if __name__ == "__main__":
    harness.main(at_once=3)
