# SPDX-License-Identifier: Apache-2.0
"""Tests `predict`: it computes what `evaluate` computes of the same images, from the checkpoint and
the files alone, and refuses what is no image of the model.
"""

import json
import os
import shutil
import unittest

import harness

try:
    import h5py
    import numpy
    from PIL import Image
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

CLASSES = ("bee", "cat", "dog")
VIT = """
[run]
name = "vit"
folder = "vit"
seed = 3
stop = "3 steps"
[model]
kind = "vit"
patch = 8
layers = 2
heads = 2
width = 16
[data]
train = "photos"
validation = "photos"
workers = 1
[data.augment]
random_resized_crop = { size = 32 }
evaluate = { resize = 40, crop = 32 }
normalize = { mean = [0.5, 0.4, 0.3], std = [0.2, 0.25, 0.3] }
[batch]
global = 6
micro = 3
[optimizer]
kind = "adamw"
ema = 0.5
[schedule]
kind = "constant"
rate = 1e-2
[monitor]
every = "1 step"
tensorboard = false
"""
GRAY = "run/checkpoints/step_000000005.h5"
COLOR = "vit/checkpoints/step_000000003.h5"


class Predict(harness.Case):
    """All tests use two runs, of gray images in the size of the model and of photos of any size."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.symlink(".", cls.shared + "/data")
        draws = numpy.random.default_rng(5)
        for number in range(12):
            name = CLASSES[number % 3]
            os.makedirs("%s/files/%s" % (cls.shared, name), exist_ok=True)
            size = (40 + 3 * number, 70 - 2 * number, 3)
            pixels = draws.integers(0, 256, size, dtype=numpy.uint8)
            path = "%s/files/%s/%d.%s" % (cls.shared, name, number, "jpg" if number % 2 else "png")
            Image.fromarray(pixels).save(path)
        for text, name in ((harness.DECK, "deck.toml"), (VIT, "vit.toml")):
            with open(os.path.join(cls.shared, name), "w") as file:
                file.write(text)
        for words in (
            ("shard", "folder", "files", "--out", "photos", "--encode", "keep"),
            ("train", "vit.toml", *harness.DEVICE),
            ("train", "deck.toml", "--set", "run.stop=5 steps", *harness.DEVICE),
        ):
            result = harness.run(*words, cwd=cls.shared)
            if result.returncode != 0:
                raise RuntimeError(result.text)

    def predict(self, *words, expect=0, cwd=None):
        result = harness.run("predict", *words, cwd=cwd or self.shared)
        self.assertEqual(result.returncode, expect, result.text)
        return result.stdout if expect == 0 else result.text

    def evaluated(self, deck, checkpoint, split, *words):
        """Returns the probabilities [samples, classes] that `evaluate` writes."""
        name = self.path("rows.h5")
        words = (
            "--predictions",
            name,
            "--overwrite",
            "--top",
            "1",
            "--logits",
            "--split",
            split,
            *words,
        )
        words = ("evaluate", deck, "--checkpoint", checkpoint, *words)
        result = harness.run(*words, cwd=self.shared)
        self.assertEqual(result.returncode, 0, result.text)
        with h5py.File(name) as file:
            logits = file["logits"][()].astype(float)
        powers = numpy.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def away(self, *parts):
        """Returns a path in a folder without datasets."""
        os.makedirs(self.path("away"), exist_ok=True)
        return self.path("away", *parts)

    def compare(self, found, expected):
        self.assertEqual(len(found["images"]), len(expected))
        for image, row in zip(found["images"], expected):
            labels = [one["label"] for one in image["classes"]]
            self.assertEqual(sorted(labels), list(range(len(row))))
            probabilities = [one["probability"] for one in image["classes"]]
            self.assertEqual(probabilities, sorted(probabilities, reverse=True))
            numpy.testing.assert_allclose(probabilities, row[labels], atol=1e-6)

    def photos(self):
        """Returns the files in the order of the shard."""
        found = []
        for name in CLASSES:
            folder = "files/" + name
            found += [folder + "/" + one for one in sorted(os.listdir(self.shared + "/" + folder))]
        return found

    def test_photos_get_the_probabilities_of_an_evaluation(self):
        files = self.photos()
        for words in ((), ("--flip",), ("--weights", "model")):
            expected = self.evaluated("vit.toml", COLOR, "validation", *words)
            found = json.loads(self.predict(COLOR, *files, "--json", *words))
            self.assertEqual([one["image"] for one in found["images"]], files)
            self.compare(found, expected)
            for one in found["images"][0]["classes"]:
                self.assertEqual(one["class"], CLASSES[one["label"]])

    def test_more_files_than_a_micro_batch_and_one_alone_are_equal(self):
        files = 3 * self.photos()
        many = json.loads(self.predict(COLOR, *files, "--json", "--top", "1"))["images"]
        self.assertEqual(len(many), 36)
        alone = json.loads(self.predict(COLOR, files[35], "--json", "--top", "1"))["images"]
        for key in ("class", "label"):
            self.assertEqual(many[35]["classes"][0][key], alone[0]["classes"][0][key])
        difference = many[35]["classes"][0]["probability"] - alone[0]["classes"][0]["probability"]
        self.assertLess(abs(difference), 1e-6)

    def gray_files(self):
        """Writes the images of the test set as gray, color and JPEG-free files."""
        with h5py.File(self.shared + "/test/shard_00000.h5") as file:
            images = file["images"][()]
        names = []
        for number, image in enumerate(images[:6]):
            names.append(self.path("%d.png" % number))
            gray = Image.fromarray(image[:, :, 0])
            (gray if number % 2 else gray.convert("RGB")).save(names[-1])
        return names

    def test_gray_images_of_the_size_of_the_model_without_its_training_set(self):
        expected = self.evaluated("deck.toml", GRAY, "test")[:6]
        shutil.copy(os.path.join(self.shared, GRAY), self.away("alone.h5"))
        names = self.gray_files()
        found = json.loads(self.predict("alone.h5", *names, "--json", cwd=self.away()))
        self.compare(found, expected)

    def test_another_size_is_refused_or_scaled_as_shard_does(self):
        [name, *_] = self.gray_files()
        large = self.path("large.png")
        Image.open(name).resize((36, 24)).save(large)
        text = self.predict(GRAY, name, large, expect=2)
        for part in ("large.png", "24 x 36", "12 x 12", "--resize"):
            self.assertIn(part, text)
        os.makedirs(self.path("one/class"))
        shutil.copy(large, self.path("one/class"))
        words = ("folder", "one", "--out", "scaled", "--resize", "12x12", "--encode", "raw")
        made = harness.run("shard", *words, cwd=self.folder)
        self.assertEqual(made.returncode, 0, made.text)
        with h5py.File(self.path("scaled/shard_00000.h5")) as file:
            scaled = file["images"][0]
        Image.fromarray(scaled).convert("L").save(self.path("scaled.png"))
        first, second = (
            json.loads(self.predict(GRAY, *words, "--json"))["images"][0]["classes"]
            for words in ((large, "--resize"), (self.path("scaled.png"),))
        )
        # Gray before and after scaling differ by one level of rounding at most.
        for one, other in zip(first, second):
            self.assertAlmostEqual(one["probability"], other["probability"], delta=0.05)
        self.assertIn("--resize", self.predict(COLOR, self.photos()[0], "--resize", expect=2))

    def test_the_text_names_the_first_five_classes(self):
        names = self.gray_files()
        lines = self.predict(GRAY, *names[:2]).splitlines()
        self.assertEqual([lines[0], lines[6], len(lines)], [names[0], names[1], 12])
        percents = [float(line.split("%")[0]) for line in lines[1:6]]
        self.assertAlmostEqual(sum(percents), 100, delta=0.01)
        self.assertEqual(len(self.predict(GRAY, names[0], "--top", "2").splitlines()), 3)

    def test_files_that_are_no_images_are_refused_before_the_first_is_classified(self):
        good = self.photos()[0]
        with open(self.path("text.jpg"), "w") as file:
            file.write("not an image")
        open(self.path("empty.png"), "w").close()
        with open(os.path.join(self.shared, "files/cat/1.jpg"), "rb") as file:
            whole = file.read()
        with open(self.path("short.jpg"), "wb") as file:
            file.write(whole[: len(whole) // 2])
        with open(self.path("head.jpg"), "wb") as file:
            file.write(whole[:4])
        for name in ("text.jpg", "empty.png", "head.jpg", "missing.jpg", "", "short.jpg"):
            path = self.path(name)
            result = harness.run("predict", COLOR, good, path, cwd=self.shared)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn(path.rstrip("/"), result.text)
            if name != "short.jpg":  # its header is whole
                self.assertEqual(result.stdout, "")

    def test_checkpoints_that_classify_no_images_are_refused(self):
        harness.make_text(self.path("text"), words=100)
        self.write_deck(harness.GPT_DECK)
        self.train("--set", "run.stop=1 step")
        text = self.predict(
            self.path("run/checkpoints/step_000000001.h5"),
            os.path.join(self.shared, self.photos()[0]),
            expect=2,
            cwd=self.folder,
        )
        self.assertIn("language model", text)
        self.assertIn("missing", self.predict("missing.h5", "a.jpg", expect=2))
        with h5py.File(self.path("new.h5"), "w") as file:
            file["x"] = numpy.zeros((2, 12, 12), numpy.uint8)
        words = (self.path("new.h5"), "--out", self.path("answers.h5"))
        for run, message in (
            (self.path("run/checkpoints/step_000000001.h5"), "trireme generate continues a text"),
            (
                GRAY,
                "its deck has no table [data.hdf5], which says how to read such files; name JPEG",
            ),
        ):
            self.assertIn(message, self.predict(run, *words, expect=2))

    def copy_of(self, run, path, state=(), deck=None):
        """Writes the tensors and the deck of a checkpoint with other attributes of /state."""
        with h5py.File(os.path.join(self.shared, run)) as source, h5py.File(path, "w") as file:
            for name in ("model", "buffers", "ema", "classes"):
                if name in source:
                    source.copy(name, file)
            for name, value in source.attrs.items():
                file.attrs[name] = value
            if deck:
                file.attrs["deck"] = deck(file.attrs["deck"])
            if state:
                file.create_group("state").attrs.update(state)

    def test_what_no_run_writes_is_refused(self):
        path, photo = self.away("odd.h5"), os.path.join(self.shared, self.photos()[0])
        sizes = {"image_height": 32, "image_width": 32, "image_channels": 3, "pixel_bits": 8}
        for change in (
            *({"image_height": one} for one in (0, -1, 1 << 40, "32", 31.5)),
            *({"image_width": one} for one in (0, 64)),
            *({"image_channels": one} for one in (0, 1, 2, 4)),
            *({"pixel_bits": one} for one in (16, 0, "8")),
        ):
            self.copy_of(COLOR, path, {**sizes, **change})
            self.assertIn("odd.h5", self.predict(path, photo, expect=2), change)
        for before, after, place in (
            ("crop = 32", "crop = 40", "evaluate: crop = 40"),
            (", 0.3]", "]", "data.augment.normalize"),
            ("patch = 8", "patch = 7", "model.patch"),
        ):
            self.copy_of(COLOR, path, sizes, lambda text: text.replace(before, after))
            self.assertIn(place, self.predict(path, photo, expect=2))
        self.copy_of(COLOR, path, sizes)
        self.predict(path, photo)

    def test_a_model_of_wide_images(self):
        photos = [os.path.join(self.shared, one) for one in self.photos()]
        words = ("folder", self.shared + "/files", "--out", "wide", "--resize", "16x32")
        made = harness.run("shard", *words, "--encode", "raw", cwd=self.folder)
        self.assertEqual(made.returncode, 0, made.text)
        text = VIT.replace('"photos"', '"wide"').replace("random_resized_crop = { size = 32 }", "")
        self.write_deck(text.replace("evaluate = { resize = 40, crop = 32 }", ""))
        self.train(*harness.DEVICE)
        run = self.path(COLOR)
        found = json.loads(self.predict(run, *photos, "--json", "--resize"))
        name = self.path("wide.h5")
        words = ("evaluate", "deck.toml", "--checkpoint", run, "--predictions", name)
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        with h5py.File(name) as file:
            for image, row in zip(found["images"], file["top_probability"][()]):
                probabilities = [one["probability"] for one in image["classes"]]
                numpy.testing.assert_allclose(probabilities, row, atol=1e-6)
        # 2 x 4 patches are as many as 1 x 8: the positions must not be taken for those.
        words = ("folder", self.shared + "/files", "--out", "wider", "--resize", "8x64")
        made = harness.run("shard", *words, "--encode", "raw", cwd=self.folder)
        self.assertEqual(made.returncode, 0, made.text)
        other = ("--set", "data.train=wider", "--set", "data.validation=wider")
        words = ("evaluate", "deck.toml", "--checkpoint", run, *other)
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("16 x 32", result.text)
        result = self.train(
            *(*other, "--restart", run, "--weights-only", "--set", "run.folder=other"),
            *harness.DEVICE,
        )
        self.assertIn("pos_embed is interpolated from 2 x 4 to 1 x 8 positions", result.text)

    def test_a_checkpoint_that_names_no_size_takes_that_of_the_training_set_or_of_the_crop(self):
        for run, files in ((GRAY, self.gray_files()), (COLOR, self.photos()[:2])):
            path = self.away("old.h5")
            self.copy_of(run, path)
            files = [os.path.join(self.shared, one) for one in files]
            expected = json.loads(self.predict(run, *files, "--json"))["images"]
            found = json.loads(self.predict(path, *files, "--json"))["images"]
            self.assertEqual(found, expected)
            if run == COLOR:
                found = json.loads(self.predict("old.h5", *files, "--json", cwd=self.away()))
                self.assertEqual(found["images"], expected)
            else:
                text = self.predict("old.h5", *files, expect=2, cwd=self.away())
                self.assertIn("data/train", text)


if __name__ == "__main__":
    unittest.main()
