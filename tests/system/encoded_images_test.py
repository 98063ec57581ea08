# SPDX-License-Identifier: Apache-2.0
"""Tests encoded images: shards of JPEG and PNG files, and training on them with random crops."""

import glob
import gzip
import io
import os
import signal
import subprocess
import time
import unittest

import harness

try:
    import h5py
    import numpy as np
    from PIL import Image

    import image_sources as sources
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

DECK = """
[run]
name = "photos"
folder = "run"
stop = "20 steps"
deterministic = true
[model]
kind = "resnet"
depth = 8
norm = "group"
[data]
train = "train"
validation = "validation"
workers = 1
[data.augment]
normalize = { mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }
random_resized_crop = { size = 16, scale = [0.2, 1.0] }
evaluate = { resize = 20, crop = 16 }
flip = true
[batch]
global = 16
micro = 4
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.05
[evaluate]
every = "10 steps"
[checkpoint]
every = "7 steps"
[monitor]
every = "1 step"
tensorboard = false
"""


COLORS = """
color_jitter = { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }
rand_augment = { count = 2, magnitude = 9 }
"""
FAST = ("--set", "data.decode=fast")


class EncodedImages(harness.Case):
    def setUp(self):
        super().setUp()
        forms = sources.every_form()
        self.files = {"%s/%s" % ("ab"[i % 2], name): forms[name] for i, name in enumerate(forms)}
        for i in range(40):
            image = Image.fromarray(sources.photograph(30 + i % 17, 28 + i % 23, i))
            self.files["%s/photo%02d.jpg" % ("ab"[i % 2], i)] = sources.encoded(image, quality=85)
        sources.write(self.path("photos"), self.files)
        self.names = sorted(self.files, key=str.encode)

    def make(self, *arguments, expect=0, ranks=1, out="made"):
        words = ("shard", "folder", "photos") + arguments + ("--out", out)
        result = harness.run(*words, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, "%s: %s" % (words, result.text))
        return result.text

    def stored_files(self, folder="made", but=""):
        """Returns the files and labels of a dataset of encoded images."""
        files, labels = [], []
        for name in sorted(set(os.listdir(self.path(folder))) - {but}):
            with h5py.File(self.path(folder, name)) as shard:
                self.assertEqual(shard.attrs["kind"], "encoded-images")
                self.assertEqual(list(shard["classes"].asstr()), ["a", "b"])
                whole, offsets = shard["bytes"][:].tobytes(), shard["offsets"][:]
                files += [whole[a:b] for a, b in zip(offsets, offsets[1:])]
                labels += list(shard["labels"][:])
                self.assertEqual(offsets[-1], len(whole))
        return files, labels

    def test_kept_files_are_those_of_the_source(self):
        text = self.make("--encode", "keep", "--shards", 3)
        self.assertIn("%d samples of files of the source" % len(self.names), text)
        files, labels = self.stored_files()
        self.assertEqual(files, [self.files[name] for name in self.names])
        self.assertEqual(labels, ["ab".index(name[0]) for name in self.names])
        sizes = [os.path.getsize(self.path("made", name)) for name in os.listdir(self.path("made"))]
        # Both ends of a shard may be off by a file.
        self.assertLess(max(sizes) - min(sizes), 2 * max(len(f) for f in files))
        self.make("--encode", "keep", "--shards", 3, out="four", ranks=4)
        self.assertEqual(self.contents("four"), self.contents("made"))
        self.assertEqual(harness.run("verify", "made", cwd=self.folder).returncode, 0)
        inspected = harness.run("inspect", "made", cwd=self.folder).text
        self.assertIn("dataset of encoded-images, %d samples of any size" % len(files), inspected)

    def test_encoded_files_have_the_pixels_of_pillow(self):
        for encode, options in (("png", {}), ("jpeg", {"quality": 70})):
            quality = ("--quality", 70) if encode == "jpeg" else ()
            self.make("--encode", encode, *quality, "--resize", "shorter=24", "--overwrite")
            files, labels = self.stored_files()
            self.assertEqual(len(files), len(self.names))
            for name, file in zip(self.names, files):
                if name.endswith("I;16.png"):
                    continue  # Pillow clips these to 8 bits
                image = Image.open(io.BytesIO(self.files[name])).convert("RGB")
                width, height = image.size
                size = (24, height * 24 // width) if width <= height else (width * 24 // height, 24)
                image = image.resize(size, Image.Resampling.BILINEAR)
                expected = io.BytesIO()
                image.save(expected, encode, **options)
                decoded = [np.asarray(Image.open(f)) for f in (io.BytesIO(file), expected)]
                np.testing.assert_array_equal(decoded[0], decoded[1], name)

    def test_options_that_do_not_fit_are_refused(self):
        sources.write(self.path("pixels"), {"x.bin": bytes(3073 * 2)})
        for words, saying in (
            (("--encode", "keep", "--resize", "8x8"), "so --resize 8x8 cannot apply"),
            (("--encode", "png", "--quality", 50), "--quality 50 belongs to --encode jpeg"),
            (("--resize", "shorter=0"), "--resize shorter=0: must be"),
            (("--resize", "longer=9"), "--resize longer=9: must be"),
            (("--encode", "webp"), "--encode"),
            (("--resize", "shorter=20"), "--encode jpeg"),
        ):
            text = self.make(*words, expect=2, out="refused")
            self.assertIn(saying, text)
            self.assertFalse(os.path.exists(self.path("refused")), text)
        words = ("shard", "cifar", "pixels/x.bin", "--encode", "keep", "--out", "refused")
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("the source holds pixels", result.text)

    def test_skipped_files_move_no_other_one(self):
        bad = "a/photo20.jpg"  # one of the third of four shards
        file = self.files[bad]
        for encode in ("keep", "png"):
            self.make("--encode", encode, "--shards", 4, out="whole_" + encode)
        sources.write(self.path("photos"), {bad: file[:200] + bytes(len(file) - 200)})
        self.assertIn(bad, self.make("--encode", "keep", "--shards", 4, expect=2, out="refused"))
        for encode in ("keep", "png"):
            words = ("--encode", encode, "--shards", 4, "--on-error", "skip")
            self.make(*words, out=encode)
            made, whole = self.contents(encode), self.contents("whole_" + encode)
            self.assertIn(bad.encode(), made.pop("skipped.csv"))
            self.assertEqual(made.keys(), whole.keys())
            changed = [name for name in whole if made[name] != whole[name]]
            self.assertEqual(len(changed), 1, changed)
            files, _ = self.stored_files(encode, but="skipped.csv")
            self.assertEqual(len(files), len(self.names) - 1)

    def test_a_killed_command_is_resumed(self):
        words = ("--encode", "png", "--resize", "shorter=90", "--shards", 8)
        self.make(*words, out="whole")
        command = harness.command("shard", "folder", "photos", *words, "--out", "made")
        process = subprocess.Popen(command, cwd=self.folder, env=harness.environment())
        while process.poll() is None and self.count_sealed() < 2:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        kept = self.count_sealed()
        text = self.make(*words, ranks=2)
        self.assertIn("%d of 8 shards kept" % kept, text)
        self.assertEqual(self.contents("made"), self.contents("whole"))

    def count_sealed(self):
        """Returns the number of shards in the staging folder that are complete."""
        return len(glob.glob(self.path("made", ".making-*", "*.h5")))

    def test_training_has_the_same_bits_at_every_layout(self):
        self.make("--encode", "keep", "--shards", 3, "--shuffle", 1, out="train")
        self.make("--encode", "jpeg", "--resize", "shorter=26", out="validation")
        self.write_deck(DECK)
        digest = self.check_layouts()
        fast = set()
        for name, ranks, workers in (("fast_one", 1, 1), ("fast_two", 2, 4)):
            words = (*FAST, "--set", "data.workers=%d" % workers)
            self.train("--set", "run.folder=" + name, *words, ranks=ranks)
            fast.add(self.digest(name))
        self.assertEqual(len(fast), 1, fast)
        self.assertNotEqual(fast, {digest})
        # A restart may change how files are decoded, and says so.
        text = self.train("--set", "run.folder=fast_two", "--set", "run.stop=21 steps").text
        self.assertRegex(text, r"data\.decode.*fast.*exact")
        rows = harness.read_rows(self.path("one"), "train")
        self.assertGreater(rows[-1]["decode_s"], 0)
        self.assertGreater(rows[-1]["augment_s"], 0)
        with open(self.path("one", "log.txt")) as file:
            log = file.read()
        self.assertRegex(log, r"epochs? [\d to]+: \d+ steps? of .* s; data .*: bound by ")
        # Evaluations take the center, whatever training draws.
        words = ("--checkpoint", "one/checkpoints/step_000000020.h5", "--split", "validation")
        evaluated = []
        for ranks in (1, 2):
            text = harness.run("evaluate", "deck.toml", *words, ranks=ranks, cwd=self.folder).text
            evaluated += [line for line in text.splitlines() if line.startswith("validation: ")]
        self.assertEqual(evaluated[0], evaluated[1])
        row = harness.read_rows(self.path("one"), "evaluate")[-1]
        self.assertIn("loss %.6f" % row["loss"], evaluated[0])

    def check_layouts(self):
        """Compares the bits of 20 steps at every layout, and returns their digest."""
        digests = {}
        for name, ranks, words in (
            ("one", 1, ()),
            ("two", 2, ()),
            ("four", 4, ()),
            ("workers", 1, ("--set", "data.workers=4", "--set", "data.verify=0.5")),
        ):
            self.train("--set", "run.folder=" + name, *words, ranks=ranks)
            digests[name] = self.digest(name)
        self.assertEqual(len(set(digests.values())), 1, digests)
        # A run that is stopped in an epoch, and goes on at another number of ranks.
        self.train("--set", "run.folder=stopped", "--set", "run.stop=11 steps", ranks=2)
        self.train("--set", "run.folder=stopped", ranks=4)
        self.assertEqual(self.digest("stopped"), digests["one"])
        return digests["one"]

    def test_colors_are_the_same_at_every_layout(self):
        self.make("--resize", "16x16", "--shards", 3, "--shuffle", 1, out="train")
        self.make("--resize", "16x16", out="validation")
        lines = [line for line in DECK.splitlines() if not line.startswith(("random_", "evaluate"))]
        deck = "\n".join(lines).replace("flip = true", "flip = true\nrandom_crop = 2" + COLORS)
        self.write_deck(deck)
        digest = self.check_layouts()
        self.assertGreater(harness.read_rows(self.path("one"), "train")[-1]["augment_s"], 0)
        evaluated = harness.read_rows(self.path("one"), "evaluate")[-1]["loss"]
        # A restart may change the keys, and says so. Without colors the bits are others.
        words = ("--set", "run.folder=changed")
        self.train(*words, "--set", "run.stop=11 steps")
        words += ("--set", "data.augment.rand_augment=false")
        text = self.train(*words, "--set", "data.augment.color_jitter=false").text
        self.assertRegex(text, r"data\.augment\.rand_augment.*count = 2, magnitude = 9")
        self.assertRegex(text, r"data\.augment\.color_jitter.*hue = 0\.1")
        self.assertNotEqual(self.digest("changed"), digest)
        # Images of an evaluation keep their colors, whatever the deck says.
        checkpoint = ("--checkpoint", "one/checkpoints/step_000000020.h5", "--split", "validation")
        for words in ((), ("--set", "data.augment.rand_augment={ magnitude = 30 }")):
            text = harness.run("evaluate", "deck.toml", *checkpoint, *words, cwd=self.folder).text
            self.assertIn("loss %.6f" % evaluated, text)

    def test_colors_of_gray_images_are_refused(self):
        harness.write_idx(self.path("images"), (20, 16, 16), bytes(range(256)) * 20)
        harness.write_idx(self.path("labels"), (20,), bytes(i % 2 for i in range(20)))
        words = ("shard", "idx", "images", "labels", "--out", "train")
        self.assertEqual(harness.run(*words, cwd=self.folder).returncode, 0)
        lines = [
            line for line in DECK.splitlines() if not line.startswith(("normalize", "random_"))
        ]
        for key, line in zip(("color_jitter", "rand_augment"), COLORS.split("\n")[1:]):
            text = "\n".join(lines).replace('validation = "validation"', "")
            text = text.replace('[evaluate]\nevery = "10 steps"', "")
            self.write_deck(text.replace("flip = true", line))
            self.assertIn(
                "data.augment.%s changes the colors of RGB images of uint8, but" % key,
                self.train(expect=2).text,
            )
            self.assertFalse(os.path.exists(self.path("run")))

    def test_every_augmentation_at_once_is_the_same_at_every_layout_and_after_a_kill(self):
        self.make("--encode", "keep", "--shards", 3, "--shuffle", 1, out="train")
        self.make("--encode", "jpeg", "--resize", "shorter=26", out="validation")
        mixing = "erase = { probability = 0.5 }\nmixup = 0.2\ncutmix = 1.0"
        self.write_deck(DECK.replace("flip = true", "flip = true" + COLORS + mixing))
        digest = self.check_layouts()
        kill = ("--allow-faults", "--set", "debug.fault=kill rank 0 step 17")
        killed = ("--set", "run.folder=killed")
        self.train(*killed, *kill, ranks=2, expect=harness.code_of_killed())
        self.train(*killed, ranks=4)
        self.assertEqual(self.digest("killed"), digest)

    def digest(self, run):
        path = self.path(run, "checkpoints/step_000000020.h5")
        result = harness.run("inspect", path, "--digest", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        return result.text.split()[-1]

    def test_damage_that_training_meets_ends_the_run(self):
        self.make("--encode", "keep", "--shards", 2, out="train")
        self.make("--encode", "png", "--resize", "shorter=26", out="validation")
        self.write_deck(DECK)
        with h5py.File(self.path("train", "shard_00001.h5")) as file:
            begin = file["bytes"].id.get_offset()
            last = begin + file["bytes"].shape[0] - 30
        with open(self.path("train", "shard_00001.h5"), "r+b") as file:
            file.seek(last)
            byte = file.read(1)[0]
            file.seek(last)
            file.write(bytes([byte ^ 1]))
        for ranks in (1, 2):
            result = self.train("--set", "data.verify=1", ranks=ranks, expect=2)
            self.assertIn(
                "train/shard_00001.h5: damaged: block 0 of /bytes and /labels", result.text
            )
        # A file that cannot be decoded is named too. It is the only damaged one: whether a decoder
        # finds the other bit depends on its version.
        with open(self.path("train", "shard_00001.h5"), "r+b") as file:
            file.seek(last)
            file.write(bytes([byte]))
            file.seek(begin)
            file.write(bytes(8))
        for ranks in (1, 2):
            result = self.train(ranks=ranks, expect=2)
            self.assertIn("train/shard_00001.h5: sample 0 is neither a JPEG nor a PNG", result.text)

    def test_pixels_of_compressed_files_are_scaled_and_encoded(self):
        rng = np.random.default_rng(1)
        images = rng.integers(0, 256, (40, 12, 16), dtype=np.uint8)
        for name, array in (("images", images), ("labels", np.arange(40, dtype=np.uint8) % 4)):
            magic = bytes([0, 0, 8, array.ndim]) + b"".join(
                n.to_bytes(4, "big") for n in array.shape
            )
            with gzip.open(self.path(name + ".gz"), "wb") as file:
                file.write(magic + array.tobytes())
        options = ("--range", "10:30", "--resize", "shorter=6", "--out")
        for encode, folder in (("raw", "pixels"), ("png", "files")):
            words = ("shard", "idx", "images.gz", "labels.gz", "--encode", encode, *options, folder)
            result = harness.run(*words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
        with h5py.File(self.path("pixels/shard_00000.h5")) as file:
            pixels = file["images"][:]
        expected = [
            Image.fromarray(i).resize((8, 6), Image.Resampling.BILINEAR) for i in images[10:30]
        ]
        np.testing.assert_array_equal(pixels[..., 0], expected)
        with h5py.File(self.path("files/shard_00000.h5")) as file:
            whole, offsets = file["bytes"][:].tobytes(), file["offsets"][:]
        for a, b, image in zip(offsets, offsets[1:], expected):
            np.testing.assert_array_equal(Image.open(io.BytesIO(whole[a:b])), image)

    def test_decks_that_do_not_fit_are_refused(self):
        self.make("--encode", "keep", out="train")
        self.make("--resize", "20x20", out="validation")
        self.make("--encode", "keep", out="encoded")
        for removed, validation, saying in (
            ("random_resized_crop", "validation", "give data.augment.random_resized_crop, as in {"),
            ("evaluate = {", "validation", "crop = 16 } gives images of an evaluation this size"),
            ("evaluate = {", "encoded", "give data.augment.evaluate, as in { resize = 256,"),
            ("train = ", "validation", 'decode = "fast" decodes JPEG files at a lower resolution'),
        ):
            lines = [line for line in DECK.splitlines() if not line.startswith(removed)]
            text = "\n".join(lines).replace('"validation"', '"%s"' % validation)
            if removed == "train = ":
                text = text.replace("[data]", '[data]\ntrain = "validation"\ndecode = "fast"')
            self.write_deck(text)
            self.assertIn(saying, self.train(expect=2).text)
            self.assertFalse(os.path.exists(self.path("run")))


if __name__ == "__main__":
    harness.main(at_once=2)
