# SPDX-License-Identifier: Apache-2.0
"""Tests `evaluate` with `--predictions`, `--flip` and `--worst`.

The file has each sample once, in the order of the shards, at any number of ranks. Its losses are
the metrics, and its parts agree with each other. Logits are averaged over mirror images, and the
images with the largest losses are drawn.
"""

import base64
import io
import json
import os
import unittest
import xml.etree.ElementTree

import harness

try:
    import h5py
    import numpy
    from PIL import Image
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

IMAGES = ("deck.toml", "run/checkpoints/step_000000005.h5", "--split", "test")
TEXT = ("gpt.toml", "gpt/checkpoints/step_000000006.h5")


class Predictions(harness.Case):
    """All tests evaluate two runs, of images and of text."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.symlink(".", cls.shared + "/data")
        harness.make_text(cls.shared + "/text", words=300)
        for name, deck, folder in (
            ("deck.toml", harness.DECK, "run"),
            ("gpt.toml", harness.GPT_DECK.replace('"run"', '"gpt"'), "gpt"),
        ):
            with open(os.path.join(cls.shared, name), "w") as file:
                file.write(deck)
            stop = ("--set", "run.stop=5 steps") if folder == "run" else ()
            result = harness.run("train", name, *stop, *harness.DEVICE, cwd=cls.shared)
            if result.returncode != 0:
                raise RuntimeError(result.text)

    def evaluate(self, run, *words, ranks=1, expect=0):
        deck, checkpoint, *split = run
        words = (deck, "--checkpoint", checkpoint, *split, *words)
        result = harness.run("evaluate", *words, ranks=ranks, cwd=self.shared)
        self.assertEqual(result.returncode, expect, result.text)
        return result.stdout if expect == 0 else result.text

    def predict(self, run, name, *words, ranks=1):
        """Returns the JSON object, the datasets and the attributes."""
        words = ("--json", "--predictions", name, *words)
        found = json.loads(self.evaluate(run, *words, ranks=ranks))
        with h5py.File(os.path.join(self.shared, name)) as file:
            return found, {key: file[key][()] for key in file}, dict(file.attrs)

    def test_images_are_in_the_order_of_the_shards_at_any_number_of_ranks(self):
        # 70 samples: the last round has micro-batches of padding.
        small = ("--set", "batch.micro=3", "--top", "3", "--logits")
        found, data, attributes = self.predict(IMAGES, "one.h5", *small)
        self.assertEqual(data["index"].tolist(), list(range(70)))
        with h5py.File(self.shared + "/test/shard_00000.h5") as shard:
            numpy.testing.assert_array_equal(data["label"], shard["labels"][()])
        types = {key: (str(data[key].dtype), data[key].shape) for key in data if key != "classes"}
        self.assertEqual(
            types,
            {
                "index": ("int64", (70,)),
                "label": ("int32", (70,)),
                "predicted": ("int32", (70,)),
                "loss": ("float32", (70,)),
                "top_class": ("int32", (70, 3)),
                "top_probability": ("float32", (70, 3)),
                "logits": ("float32", (70, 5)),
            },
        )
        self.assertEqual([name.decode() for name in data["classes"]], list("01234"))
        self.assertAlmostEqual(data["loss"].mean(dtype=float), found["loss"], delta=1e-6)
        self.assertAlmostEqual((data["predicted"] == data["label"]).mean(), found["top1"], places=9)
        # The parts follow from the logits.
        logits = data["logits"].astype(float)
        exponentials = numpy.exp(logits - logits.max(1, keepdims=True))
        probabilities = exponentials / exponentials.sum(1, keepdims=True)
        order = numpy.argsort(-logits, axis=1, kind="stable")[:, :3]
        numpy.testing.assert_array_equal(data["top_class"], order)
        numpy.testing.assert_array_equal(data["predicted"], order[:, 0])
        of_label = probabilities[range(70), data["label"]]
        numpy.testing.assert_allclose(data["loss"], -numpy.log(of_label), rtol=1e-6, atol=1e-6)
        top = numpy.take_along_axis(probabilities, order, 1)
        numpy.testing.assert_allclose(data["top_probability"], top, atol=1e-7)
        # Where they come from.
        digest = json.loads(
            harness.run("inspect", "--digest", "--json", IMAGES[1], cwd=self.shared).stdout
        )
        self.assertEqual(attributes["checkpoint_digest"], digest["digest"])
        self.assertEqual((attributes["split"], attributes["checkpoint"]), ("test", IMAGES[1]))
        self.assertIn("micro = 3", attributes["deck"])
        for ranks in (2, 3):
            _, other, _ = self.predict(IMAGES, "%d.h5" % ranks, *small, ranks=ranks)
            for key, values in data.items():
                if values.dtype == numpy.float32:
                    numpy.testing.assert_allclose(other[key], values, atol=1e-6, err_msg=key)
                else:
                    numpy.testing.assert_array_equal(other[key], values, err_msg=key)

    def test_flip_averages_the_logits_of_image_and_mirror_image(self):
        words = ("--set", "batch.micro=3", "--logits")
        _, plain, attributes = self.predict(IMAGES, "plain.h5", *words)
        self.assertEqual(attributes["flip"], 0)
        # The same images, mirrored in the shard.
        os.makedirs(self.shared + "/mirror", exist_ok=True)
        with h5py.File(self.shared + "/test/shard_00000.h5") as shard:
            images, labels = shard["images"][()], shard["labels"][()]
        with h5py.File(self.shared + "/mirror/all.h5", "w") as file:
            file.attrs.update({"format": "trireme-shard", "version": 1, "kind": "images"})
            file["images"], file["labels"] = images[:, :, ::-1], labels
        words += ("--set", "data.test=mirror")
        _, mirror, _ = self.predict(IMAGES, "mirror.h5", *words)
        self.assertGreater(abs(mirror["logits"] - plain["logits"]).max(), 1e-3)
        mean = (mirror["logits"] + plain["logits"]) / 2
        for ranks in (1, 3):
            name = "flip%d.h5" % ranks
            found, data, attributes = self.predict(IMAGES, name, *words[:-2], "--flip", ranks=ranks)
            self.assertEqual((found["flip"], attributes["flip"]), (True, 1))
            numpy.testing.assert_allclose(data["logits"], mean, atol=1e-5)
            self.assertAlmostEqual(data["loss"].mean(dtype=float), found["loss"], delta=1e-6)
            right = data["predicted"] == data["label"]
            self.assertAlmostEqual(right.mean(), found["top1"], places=9)

    def test_worst_images_are_drawn(self):
        words = ("--worst", "worst.svg", "--worst-count", "9")
        for ranks in (1, 3):
            _, data, _ = self.predict(IMAGES, "worst%d.h5" % ranks, *words, ranks=ranks)
            svg = "{http://www.w3.org/2000/svg}"
            root = xml.etree.ElementTree.parse(self.shared + "/worst.svg").getroot()
            tiles = root.findall(svg + "g")
            order = numpy.argsort(-data["loss"], kind="stable")[:9]
            for tile, i in zip(tiles, order, strict=True):
                meant = "true: %d; %.1f %% %d; loss %.3f; sample %d" % (
                    data["label"][i],
                    100 * data["top_probability"][i, 0],
                    data["predicted"][i],
                    data["loss"][i],
                    i,
                )
                self.assertEqual(tile.find(svg + "title").text, meant)
                address = tile.find(svg + "image").get("href")
                self.check_picture(address.removeprefix("data:image/png;base64,"), i)

    def check_picture(self, encoded, sample):
        """Compares a PNG file with an image of the shard."""
        picture = numpy.asarray(Image.open(io.BytesIO(base64.b64decode(encoded, validate=True))))
        with h5py.File(self.shared + "/test/shard_00000.h5") as shard:
            numpy.testing.assert_array_equal(picture, shard["images"][sample][..., 0])

    def test_text_has_the_loss_of_each_token(self):
        found, data, _ = self.predict(TEXT, "text.h5")
        self.assertEqual(set(data), {"index", "loss"})
        samples = found["samples"]
        self.assertEqual(data["index"].tolist(), list(range(samples)))
        self.assertEqual((data["loss"].shape, data["loss"].dtype), ((samples, 16), "float32"))
        self.assertAlmostEqual(data["loss"].mean(dtype=float), found["loss"], delta=1e-6)
        for name, ranks, layout in (
            ("data.h5", 3, ()),
            ("tensor.h5", 2, ("--set", "parallel.tensor=2")),
            ("pipeline.h5", 2, ("--set", "parallel.pipeline=2")),
        ):
            _, other, _ = self.predict(TEXT, name, *layout, ranks=ranks)
            numpy.testing.assert_array_equal(other["index"], data["index"])
            numpy.testing.assert_allclose(other["loss"], data["loss"], atol=1e-4, err_msg=name)

    def test_file_that_exists_needs_a_word(self):
        _, before, _ = self.predict(IMAGES, "twice.h5")
        self.assertEqual(before["top_class"].shape, (70, 5))
        words = ("--predictions", "twice.h5")
        for run in (IMAGES, TEXT):
            self.assertIn(
                "--predictions twice.h5: exists; name another file, or add --overwrite",
                self.evaluate(run, *words, expect=2),
            )
        _, after, _ = self.predict(IMAGES, "twice.h5", "--overwrite", "--top", "9")
        self.assertEqual(after["top_class"].shape, (70, 5))
        # A deck or a checkpoint in its place survives.
        for name in ("deck.toml", IMAGES[1]):
            text = self.evaluate(IMAGES, "--predictions", name, "--overwrite", expect=2)
            self.assertIn("exists and is no HDF5 file", text)

    def test_only_predictions_are_replaced(self):
        for name in (IMAGES[1], "test/shard_00000.h5"):
            with open(os.path.join(self.shared, name), "rb") as file:
                before = file.read()
            words = ("--predictions", name, "--overwrite")
            self.assertIn("so it is not replaced", self.evaluate(IMAGES, *words, expect=2))
            with open(os.path.join(self.shared, name), "rb") as file:
                self.assertEqual(file.read(), before)

    def test_wrong_options_are_refused(self):
        for run, words, message in (
            (IMAGES, ("--logits",), "--logits is about the file of --predictions"),
            (IMAGES, ("--top", "0", "--predictions", "a.h5"), "--top"),
            (IMAGES, ("--predictions", "none/a.h5"), "there is no folder"),
            (IMAGES, ("--predictions", "a.svg", "--confusion", "a.svg"), "name the same file"),
            (TEXT, ("--predictions", "a.h5", "--top", "3"), "--top: of a language model only"),
            (TEXT, ("--worst", "a.svg"), "a language model has no images to draw"),
            (IMAGES, ("--worst", "a.png"), "the picture is SVG"),
            (IMAGES, ("--worst-count", "3"), "--worst-count is about the picture of --worst"),
            (TEXT, ("--flip",), "--flip: a language model has no images to mirror"),
            (TEXT, ("--confusion", "a.csv"), "a language model has no classes to confuse"),
        ):
            self.assertIn(message, self.evaluate(run, *words, expect=2))
        self.assertEqual([name for name in os.listdir(self.shared) if name.startswith("a.")], [])


if __name__ == "__main__":
    unittest.main()
