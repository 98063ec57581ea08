"""Tests inputs/recipes/shard_images.py: the program trains on the dataset that it makes."""

import os
import pathlib
import subprocess
import sys
import unittest

import harness

try:
    import h5py
    import numpy as np
    from PIL import Image
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLORS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


class ShardImages(harness.Case):
    def setUp(self):
        super().setUp()
        for name, color in COLORS.items():
            os.makedirs(self.path("photos", name))
            # Portrait, landscape, and smaller than the size that is asked for.
            for i, extents in enumerate(((40, 30), (30, 60), (20, 20), (64, 64))):
                Image.new("RGB", extents, color).save(self.path("photos", name, "%d.png" % i))

    def make(self, *options, expect=0):
        result = subprocess.run(
            [sys.executable, ROOT / "inputs/recipes/shard_images.py", *options],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(result.returncode, expect, result.stdout)
        return result.stdout

    def test_each_image_has_the_label_of_its_folder(self):
        self.make("photos", "made/train", "--size", "28", "--processes", "2")
        self.assertEqual(os.listdir(self.path("made")), ["train"])
        with h5py.File(self.path("made/train/shard_00000.h5")) as file:
            names = list(file["classes"].asstr())
            images, labels = file["images"][:], file["labels"][:]
            self.assertIsNone(file["images"].chunks)  # read without HDF5
        self.assertEqual(names, sorted(COLORS))
        self.assertEqual(images.shape, (12, 28, 28, 3))
        self.assertEqual(sorted(labels), [0] * 4 + [1] * 4 + [2] * 4)
        for image, label in zip(images, labels):
            self.assertTrue(np.all(image == COLORS[names[label]]), (label, image[0, 0]))

    def test_the_center_is_taken(self):
        # At 7/8 of the shorter side nothing is scaled: the center starts at pixel (4, 2).
        pixels = np.arange(32 * 36 * 3, dtype=np.uint32).reshape(32, 36, 3).astype(np.uint8)
        for name in COLORS:
            for file in os.listdir(self.path("photos", name)):
                os.remove(self.path("photos", name, file))
        Image.fromarray(pixels).save(self.path("photos/red/0.png"))
        self.make("photos", "made", "--size", "28")
        with h5py.File(self.path("made/shard_00000.h5")) as file:
            self.assertTrue(np.array_equal(file["images"][0], pixels[2:30, 4:32]))

    def test_the_program_trains_on_it(self):
        self.make("photos", "made", "--size", "28")
        deck = harness.DECK.replace(
            "mean = [0.4], std = [0.25]", "mean = [0, 0, 0], std = [1, 1, 1]"
        )
        self.write_deck(deck.replace("global = 64\nmicro = 16", "global = 4\nmicro = 4"))
        sets = [
            word
            for name in ("train", "validation", "test")
            for word in ("--set", "data.%s=made" % name)
        ]
        self.train(*sets)
        self.assertLess(harness.losses(self.path("run"))[-1], harness.losses(self.path("run"))[0])

    def test_wrong_input_is_refused(self):
        self.assertIn("nowhere: no such folder", self.make("nowhere", "made", expect=2))
        self.assertIn("two or more classes", self.make("photos/red", "made", expect=2))
        self.assertIn("must be a new or empty folder", self.make("photos", "photos", expect=2))
        pathlib.Path(self.path("photos/red/notes.txt")).write_text("no image")
        self.assertIn(
            "red/notes.txt: cannot be read as an image", self.make("photos", "made", expect=2)
        )
        self.assertFalse(os.path.exists(self.path("made")))


if __name__ == "__main__":
    unittest.main()
