"""A checkpoint cut short or with a changed byte is found wherever the byte is, set aside with a message, and the one before it is used."""

import os
import random
import shutil
import unittest

import harness


def flip(path, place, bit=0):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))


class Damage(harness.Case):
    def setUp(self):
        super().setUp()
        self.train("--set", "run.stop=15 steps")
        self.newest = self.path("run/checkpoints/step_000000015.h5")

    def test_one_changed_byte_anywhere_is_found(self):
        size = os.path.getsize(self.newest)
        rng = random.Random(5)
        places = [0, 7, 8, 511, 512, size - 1] + [rng.randrange(size) for _ in range(194)]
        for place in places:
            bit = rng.randrange(8)
            flip(self.newest, place, bit)
            result = harness.run("verify", self.newest)
            flip(self.newest, place, bit)
            self.assertEqual(result.returncode, 2, "byte %d of %d: %s" % (place, size, result.text))
            self.assertIn("step_000000015.h5", result.text)
        self.assertEqual(harness.run("verify", self.newest).returncode, 0)

    def check_passed_over(self, ranks=1):
        result = self.train("--set", "run.stop=20 steps", ranks=ranks)
        self.assertIn("step_000000015.h5", result.text)
        self.assertIn("goes on from run/checkpoints/step_000000010.h5", result.text)
        self.assertTrue(os.path.exists(self.newest))  # written anew by the run that went on
        self.assertTrue([name for name in os.listdir(self.path("run/checkpoints")) if "damaged" in name])

    def test_a_flipped_bit_is_passed_over(self):
        flip(self.newest, os.path.getsize(self.newest) // 2)
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

    def test_a_temporary_file_is_never_taken(self):
        shutil.copy(self.newest, self.path("run/checkpoints/step_000000099.h5.tmp"))
        result = self.train("--set", "run.stop=20 steps")
        self.assertIn("step_000000015.h5", result.text)

    def test_a_folder_without_a_whole_checkpoint_is_never_begun_anew(self):
        for name in harness.checkpoints(self.path("run")):
            flip(self.path("run/checkpoints", name), 4000)
        result = self.train("--set", "run.stop=20 steps", expect=2, ranks=2)
        self.assertIn("--restart none", result.text)
        self.assertEqual(result.text.count("--restart none"), 1)
        self.train("--set", "run.stop=20 steps", "--restart", "none")


if __name__ == "__main__":
    unittest.main()
