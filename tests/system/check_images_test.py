# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme check --images`: the picture of training images with the deck's augmentation."""

import json
import os
import unittest

import harness

try:
    import h5py
    import numpy as np
    from PIL import Image
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, SIDE, ZOOM, GAP, EPOCHS = 20, 16, 4, 4, 6
DECK = """
[run]
name = "picture"
stop = "1 epoch"
[model]
kind = "resnet"
depth = 8
[data]
train = "train"
[data.augment]
%s
[batch]
global = 4
micro = 4
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.1
"""


class CheckImages(harness.Case):
    def setUp(self):
        super().setUp()
        self.images = np.random.default_rng(5).integers(
            0, 256, (SAMPLES, SIDE, SIDE, 3), dtype=np.uint8
        )
        self.write(self.images)

    def write(self, images, classes=()):
        os.makedirs(self.path("train"), exist_ok=True)
        with h5py.File(self.path("train", "part.h5"), "w") as file:
            file.attrs["format"] = "trireme-shard"
            file.create_dataset("images", data=images)
            file.create_dataset("labels", data=np.arange(len(images), dtype=np.int32) % 4)
            if classes:
                file.create_dataset("classes", data=list(classes))

    def check(self, augment="", *words, expect=0):
        self.write_deck(DECK % augment)
        words = ("check", "deck.toml", "--images", "sheet.png", *words)
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def tiles(self):
        """Returns the tiles of the picture, [epochs, columns, side, side, 3]."""
        sheet = np.asarray(Image.open(self.path("sheet.png")))
        step = SIDE * ZOOM + GAP
        self.assertEqual((sheet.shape[0] - GAP) % step, 0)
        rows, columns = (sheet.shape[0] - GAP) // step, (sheet.shape[1] - GAP) // step
        tiles = np.empty((rows, columns, SIDE, SIDE, 3), np.uint8)
        for row in range(rows):
            for column in range(columns):
                top, left = GAP + row * step, GAP + column * step
                tile = sheet[top : top + SIDE * ZOOM, left : left + SIDE * ZOOM]
                np.testing.assert_array_equal(
                    tile, tile[::ZOOM, ::ZOOM].repeat(ZOOM, 0).repeat(ZOOM, 1)
                )
                tiles[row, column] = tile[::ZOOM, ::ZOOM]
        return tiles

    def test_plain_images_are_the_stored_ones_and_normalize_is_left_out(self):
        text = self.check("normalize = { mean = [0.5], std = [0.25] }")
        self.assertIn("sheet.png: 8 training images in columns, 6 epochs in rows", text)
        tiles = self.tiles()
        self.assertEqual(tiles.shape[:2], (EPOCHS, 8))
        for row in tiles:
            np.testing.assert_array_equal(row, self.images[[i * SAMPLES // 8 for i in range(8)]])

    def test_each_key_changes_the_picture(self):
        plain = self.images[[i * SAMPLES // 8 for i in range(8)]]
        for augment in (
            "random_crop = 3",
            "random_resized_crop = { size = 16 }",
            "color_jitter = { hue = 0.4 }",
            "rand_augment = {}",
            "erase = { probability = 1.0 }",
            "mixup = 1.0",
            "cutmix = 1.0",
        ):
            self.check(augment)
            tiles = self.tiles()
            self.assertTrue(np.any(tiles[0] != plain), augment)
            self.assertTrue(np.any(tiles[0] != tiles[1]), augment)
        self.check("flip = true")
        for row in self.tiles():
            for tile, image in zip(row, plain):
                self.assertTrue(np.array_equal(tile, image) or np.array_equal(tile[:, ::-1], image))

    def test_two_partners_of_a_mix_are_neighbors(self):
        self.images[:] = (np.arange(SAMPLES) * 12)[:, None, None, None]
        self.write(self.images)
        self.check("cutmix = 1.0")
        levels = [i * SAMPLES // 8 * 12 for i in range(8)]
        for row in self.tiles():
            for column, tile in enumerate(row):
                self.assertLessEqual(set(np.unique(tile)), {levels[column], levels[column ^ 1]})

    def test_images_of_one_channel_and_of_floats_are_drawn(self):
        values = self.images[..., :1].astype(np.float32) / 200 - 0.1
        self.write(values)
        self.check()
        expected = np.clip(values, 0, 1)[[i * SAMPLES // 8 for i in range(8)]] * 255
        difference = abs(self.tiles()[0].astype(float) - expected)
        self.assertLessEqual(difference.max(), 0.51)

    def test_statistics_of_shards(self):
        """They have the scale of data.augment.normalize: a byte is value / 255."""
        self.write_deck(DECK % "")
        words = ("check", "deck.toml", "--statistics", "--json")
        found = json.loads(harness.run(*words, cwd=self.folder).stdout)["statistics"]
        numbers = self.images / 255
        for key, expected in (("mean", numbers.mean((0, 1, 2))), ("std", numbers.std((0, 1, 2)))):
            for a, b in zip(found[key], expected, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-6)
        self.assertEqual(found["target_mean"], [])

    def test_a_dataset_of_one_image(self):
        self.write(self.images[:1], classes=("cat", "dog"))
        words = ("--set", "data.drop_last=false")
        self.assertIn("1 training image in columns", self.check("flip = true", *words))
        text = self.check("mixup = 0.2", *words, expect=2)
        self.assertIn("holds one image, which cannot be mixed with another one", text)

    def test_what_cannot_be_drawn_is_refused(self):
        words = ("--assume", "images:100,16x16x3,4")
        self.assertIn("--images draws images of data.train", self.check("", *words, expect=2))
        self.write_deck(harness.GPT_DECK)
        result = harness.run("check", "deck.toml", "--images", "x.png", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--images draws images, but the model of deck.toml is for", result.text)
        self.write_deck(DECK % "")
        before = self.contents("train")
        os.symlink("deck.toml", self.path("link.png"))
        for target, saying in (
            ("none/x.png", "there is no folder"),
            ("none/", "there is no folder"),
            ("", "--images: must not be empty"),
            ("train", "is a folder; name a file in it"),
            ("deck.toml", "exists and is no PNG file, so it is not replaced"),
            ("new.svg", "is written as PNG, so its name must not end in .svg; name it as in"),
            ("link.png", "exists and is no PNG file, so it is not replaced"),
            ("train/part.h5", "exists and is no PNG file, so it is not replaced"),
        ):
            result = harness.run("check", "deck.toml", "--images", target, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(saying, result.text)
            self.assertEqual(result.stdout, "")
        self.assertEqual(self.contents("train"), before)
        # A picture may be drawn again.
        self.check("flip = true")
        self.check()

    def test_pictures_of_large_images_are_thinned_out(self):
        self.write(np.zeros((4, 1500, 900, 1), np.uint8))
        self.check()
        # Every third pixel.
        step, side = (1500 + 2) // 3 + GAP, (900 + 2) // 3 + GAP
        size = Image.open(self.path("sheet.png")).size
        self.assertEqual(size, (4 * side + GAP, EPOCHS * step + GAP))


if __name__ == "__main__":
    harness.main(at_once=2)
