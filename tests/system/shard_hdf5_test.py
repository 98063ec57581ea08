# SPDX-License-Identifier: Apache-2.0
"""Tests shards that `trireme shard hdf5` makes from files of other programs.

For each kind of target training on them has the bits of training on the files. Contents, checksums,
ranks, the table that shards keep, and what is refused.
"""

import os
import shutil

import harness

try:
    import h5py
    import numpy as np
    from PIL import Image
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

SAMPLES, EVALUATED, HEIGHT, WIDTH, CLASSES = 40, 12, 6, 8, 3
MLP = 'kind = "mlp"\nwidths = [8]'
CHAIN = """kind = "chain"
blocks = [
  { kind = "conv", channels = 4, kernel = 3 },
  { kind = "activation", activation = "relu" },
  { kind = "conv", channels = %d, kernel = 3 },
]"""
DECK = """
[run]
name = "sharded"
folder = "run"
stop = "6 steps"
[model]
%s
[data]
train = "train.h5"
validation = "validation.h5"
[data.hdf5]
input = ["u", "v"]
layout = "hw"
%s
[batch]
global = 8
micro = 4
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.1
[evaluate]
every = "3 steps"
[checkpoint]
every = "6 steps"
[monitor]
every = "1 step"
tensorboard = false
"""
# The model, and the rest of [data.hdf5] with what follows it.
KINDS = {
    "class": (MLP, 'target = "label"\n'),
    "classes": (MLP, 'target = "tags"\n[target]\nkind = "classes"'),
    "values": (
        MLP,
        'target = ["scalar", "vector"]\nfill = 0.5\n[target]\nkind = "values"\n'
        "normalize = { mean = [1, 0, 0], std = [2, 1, 1] }",
    ),
    # Numbers that float32 would round.
    "exact values": (
        MLP,
        'target = ["stamp", "packed"]\nfill = 0.5\n[target]\nkind = "values"\n'
        "normalize = { mean = [1.7e9, 3e5], std = [20, 0.01] }",
    ),
    "exact field": (
        CHAIN % 1,
        'target = "height"\nfill = 0.5\n[target]\nkind = "field"\n'
        "normalize = { mean = [4e7], std = [0.5] }",
    ),
    "pixels": (
        CHAIN % CLASSES,
        'target = "mask"\n[target]\nkind = "pixels"\nclasses = %d\nignore = 9\n' % CLASSES,
    ),
    "field": (
        CHAIN % 2,
        'target = "flow"\ntarget_layout = "chw"\ntransform = "log1p"\n[target]\nkind = "field"\n'
        "normalize = { mean = [1], std = [2] }",
    ),
}


def make(path, samples, seed):
    rng = np.random.default_rng(seed)
    u = rng.random((samples, HEIGHT, WIDTH)).astype(">f4")
    u[::7, 0, 0] = -999
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=u, chunks=(5, HEIGHT, WIDTH), compression=4, shuffle=True)
        file["u"].attrs["missing_value"] = np.float32(-999)
        file["v"] = np.arange(samples * HEIGHT * WIDTH).reshape(u.shape).astype("i2") % 300
        file["v"].attrs["scale_factor"] = 1 / 256
        file["label"] = (np.arange(samples) % CLASSES).astype("i8")
        file["tags"] = rng.random((samples, 4)) < 0.4
        file["scalar"] = rng.normal(size=samples).astype("f4")
        file["vector"] = rng.normal(size=(samples, 2)).astype(">f4")
        file["stamp"] = 1_700_000_000 + rng.integers(-40, 40, samples)
        file["packed"] = rng.integers(-20, 20, samples).astype("i2")
        file["packed"].attrs.update({"scale_factor": 0.001, "add_offset": 3e5})
        file["height"] = 4e7 + rng.normal(size=u.shape)
        file["half"] = rng.normal(size=u.shape).astype("f2")
        mask = rng.integers(0, CLASSES, u.shape)
        mask[rng.random(u.shape) < 0.2] = 9
        file["mask"] = mask.astype("u2")
        flow = rng.normal(size=(samples, 2, HEIGHT, WIDTH)).astype("f4")
        flow[rng.random(flow.shape) < 0.1] = np.nan
        file["flow"] = flow


class ShardHdf5(harness.Case):
    def setUp(self):
        super().setUp()
        make(self.path("train.h5"), SAMPLES, 1)
        make(self.path("validation.h5"), EVALUATED, 2)

    def deck_of(self, kind):
        model, rest = KINDS[kind]
        if kind in ("class", "classes", "pixels"):
            rest = "fill = 0.25\n" + rest
        if kind == "field":
            rest = "fill = 0.0\n" + rest
        self.write_deck(DECK % (model, rest))

    def shard(self, split, *words, ranks=1, expect=0, out=None):
        result = harness.run(
            "shard",
            "hdf5",
            "deck.toml",
            "--split",
            split,
            "--out",
            out or "sharded/" + split,
            *words,
            ranks=ranks,
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    def both(self):
        for split in ("train", "validation"):
            self.shard(split, "--shards", "3")
        return ("--set", "data.train=sharded/train", "--set", "data.validation=sharded/validation")

    def rows(self, folder):
        """Returns losses and metrics of a run."""
        words = ("step", "loss", "samples", "top1", "rmse", "r2", "f1", "iou", "accuracy")
        return [
            [row.get(word) for word in words]
            for kind in ("train", "evaluate")
            for row in harness.read_rows(self.path(folder), kind)
        ]

    def test_bits_of_each_kind(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.deck_of(kind)
                shutil.rmtree(self.path("sharded"), ignore_errors=True)
                sharded = self.both()
                for one in ("train", "validation"):
                    with h5py.File(self.path("sharded", one, "shard_00000.h5")) as file:
                        if "targets" in file and kind != "pixels":
                            wanted = "f8" if kind.startswith("exact") else "f4"
                            self.assertEqual(file["targets"].dtype, wanted)
                self.train("--set", "run.folder=%s_files" % kind)
                self.train("--set", "run.folder=%s_shards" % kind, *sharded)
                rows = self.rows("%s_files" % kind)
                self.assertGreater(len(rows), 7)
                self.assertEqual(self.rows("%s_shards" % kind), rows)
                # With checksums in place of the table.
                self.without_table()
                more = ("--set", "data.verify=1", "--set", "run.folder=%s_bare" % kind)
                self.train(*more, *sharded)
                self.assertEqual(self.rows("%s_bare" % kind), rows)
                result = harness.run("verify", "sharded/train", cwd=self.folder)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stdout.count(": whole"), 3)

    def test_contents(self):
        with h5py.File(self.path("train.h5")) as file:
            source = {name: file[name][:] for name in file}
        u = source["u"].astype("f4")
        u[u == -999] = 0.25
        images = np.stack([u, (source["v"] / 256).astype("f4")], -1)
        mask = np.where(source["mask"] == 9, 255, source["mask"]).astype("u1")
        self.deck_of("pixels")
        self.shard("train", "--range", "3:33")
        with h5py.File(self.path("sharded/train/shard_00000.h5")) as file:
            np.testing.assert_array_equal(file["images"][:], images[3:33])
            np.testing.assert_array_equal(file["targets"][:], mask[3:33])
            self.assertEqual(file["targets"].dtype, np.uint8)
            self.assertEqual(file["targets"].attrs["kind"], "pixels")
            self.assertEqual(file["targets"].attrs["classes"], CLASSES)
            self.assertEqual(file["targets"].attrs["_FillValue"], 255)
            self.assertEqual(file["images"].attrs["layout"], "hwc")

    def test_random_order(self):
        self.deck_of("values")
        self.shard("train", "--shuffle", "3", "--shards", "3")
        with h5py.File(self.path("train.h5")) as file:
            v = (file["v"][:] / 256).astype("f4").reshape(SAMPLES, -1)
            expected = np.column_stack([v, file["scalar"][:], file["vector"][:]])
        found = []
        for i in range(3):
            with h5py.File(self.path("sharded/train/shard_%05d.h5" % i)) as file:
                v = file["images"][..., 1].reshape(len(file["images"]), -1)
                found.append(np.column_stack([v, file["targets"][:]]))
        found = np.concatenate(found)
        self.assertFalse(np.array_equal(found, expected))
        order = lambda rows: rows[np.lexsort(rows.T)]
        np.testing.assert_array_equal(order(found), order(expected))

    def test_many_classes_of_pixels(self):
        """Are stored with as few bytes as hold them and the number that does not count."""
        for classes, kind in ((255, "u1"), (256, "u2"), (65536, "i4")):
            mask = np.random.default_rng(classes).integers(0, classes, (SAMPLES, HEIGHT, WIDTH))
            mask[0, 0] = -5
            mask[1, 1, 1] = classes - 1
            with h5py.File(self.path("train.h5"), "r+") as file:
                del file["mask"]
                file["mask"] = mask.astype("i8")
            self.deck_of("pixels")
            words = ("--set", "target.ignore=-5", "--set", "target.classes=%d" % classes)
            self.shard("train", *words, "--overwrite")
            with h5py.File(self.path("sharded/train/shard_00000.h5")) as file:
                self.assertEqual(file["targets"].dtype, kind)
                found, none = file["targets"][:].astype("i8"), file["targets"].attrs["_FillValue"]
            np.testing.assert_array_equal(np.where(found == none, -5, found), mask)
            result = harness.run("verify", "sharded/train", cwd=self.folder)
            self.assertIn(": whole", result.stdout)

    def test_bytes_at_any_number_of_ranks(self):
        self.deck_of("field")
        for ranks in (1, 2, 3):
            self.shard("train", "--shards", "4", ranks=ranks, out="at%d" % ranks)
        names = sorted(os.listdir(self.path("at1")))
        self.assertEqual(names, ["shard_%05d.h5" % i for i in range(4)])
        for name in names:
            content = open(self.path("at1", name), "rb").read()
            for ranks in (2, 3):
                self.assertEqual(open(self.path("at%d" % ranks, name), "rb").read(), content)

    def test_names_of_classes(self):
        self.deck_of("class")
        self.shard("train", "--classes", "calm,mild,rough", "--shards", "2", ranks=2)
        for i in range(2):
            with h5py.File(self.path("sharded/train/shard_%05d.h5" % i)) as file:
                names = [name.decode() for name in file["classes"][:]]
                self.assertEqual(names, ["calm", "mild", "rough"])
        result = self.shard("validation", "--classes", "a,b", expect=2)
        self.assertIn("--classes: names 2 classes, but sample 2 has class 2", result.stderr)
        # They stay when shards are made of shards.
        self.shard("train", "--set", "data.train=sharded/train", "--range", "0:20", out="part")
        shown = harness.run("inspect", "part", "--json", cwd=self.folder)
        self.assertIn('"calm"', shown.stdout)
        self.deck_of("values")
        result = self.shard("validation", "--classes", "a,b", expect=2)
        self.assertIn(
            '--classes names classes of samples, but target.kind = "values"', result.stderr
        )

    def test_half_precision(self):
        """Stays half precision, so files and shards go together."""
        self.deck_of("values")
        half = ("--set", 'data.hdf5.input="half"', "--unset", "data.hdf5.fill")
        self.shard("train", *half)
        with h5py.File(self.path("sharded/train/shard_00000.h5")) as file, h5py.File(
            self.path("train.h5")
        ) as source:
            self.assertEqual(file["images"].dtype, "f2")
            np.testing.assert_array_equal(file["images"][..., 0], source["half"][:])
        self.train(*half, "--set", "data.train=sharded/train", "--set", "run.folder=mixed")
        self.train(*half, "--set", "run.folder=files")
        self.assertEqual(self.rows("mixed"), self.rows("files"))
        words = ("predict", "mixed/checkpoints/best.h5", "validation.h5", "--out", "p.h5")
        result = harness.run(*words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)

    def without_table(self):
        """Removes [data.hdf5] from the deck."""
        text = open(self.path("deck.toml")).read()
        begin, end = text.index("[data.hdf5]"), text.index("\n[", text.index("layout = "))
        self.write_deck(text[:begin] + text[end + 1 :])

    def test_sets_and_shards_that_were_made_otherwise(self):
        self.deck_of("pixels")
        sharded = self.both()
        other = ("--set", "data.hdf5.fill=0.5", "--shards", "3")
        self.shard("validation", *other, out="filled")
        self.without_table()
        self.train(*sharded)
        result = self.train("--set", "target.ignore=2", *sharded, expect=2)
        self.assertIn(
            "was made with target.ignore = 9, so target.ignore = 2 finds no", result.stderr
        )
        self.deck_of("pixels")
        self.shard("train", "--unset", "target.ignore", "--set", "target.classes=10", out="all")
        self.without_table()
        some = ("--set", "data.train=all", "--unset", "data.validation", "--unset")
        some += ("evaluate.every", "--set", "run.folder=some")
        blocks = CHAIN % 10
        text = open(self.path("deck.toml")).read().replace(CHAIN % CLASSES, blocks)
        self.write_deck(text.replace("classes = 3", "classes = 10"), "ten.toml")
        self.train(*some, deck="ten.toml")
        places = sharded[:2] + ("--set", "data.validation=filled")
        result = self.train(*places, expect=2)
        self.assertIn(
            "made of its files with data.hdf5.transform = none", result.stderr.replace('"', "")
        )
        self.assertIn("data.hdf5.fill = 0.5", result.stderr)
        shutil.copy(
            self.path("filled/shard_00000.h5"), self.path("sharded/validation/shard_00009.h5")
        )
        result = self.train(*sharded, expect=2)
        self.assertIn("shard_00009.h5: was made with", result.stderr)
        self.assertIn("make the shards again", result.stderr)

    def test_other_commands(self):
        """Evaluate takes decks with and without the table; bench reads any shards."""
        self.deck_of("field")
        sharded = self.both()
        self.train(*sharded, "--set", "run.folder=with")
        with_table = open(self.path("deck.toml")).read()
        self.without_table()
        self.train(*sharded, "--set", "run.folder=without")
        found = []
        for deck in (open(self.path("deck.toml")).read(), with_table):
            self.write_deck(deck)
            for run in ("with", "without"):
                words = ("evaluate", "deck.toml", "--checkpoint", run + "/checkpoints/best.h5")
                result = harness.run(*words, *sharded, cwd=self.folder)
                self.assertEqual(result.returncode, 0, result.text)
                self.assertNotIn("warning", result.text)
                found.append(result.stdout)
        self.assertEqual(found, found[:1] * 4)
        # Shards that were made with another table are no data of these models.
        self.deck_of("field")
        self.shard("validation", "--set", "data.hdf5.fill=0.75", out="other")
        self.without_table()
        for run in ("with", "without"):
            words = ("evaluate", "deck.toml", "--checkpoint", run + "/checkpoints/best.h5")
            places = sharded[:2] + ("--set", "data.validation=other")
            result = harness.run(*words, *places, cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("data.hdf5.fill = 0.75", result.stderr)
        result = self.train(
            *places[:1],
            "data.train=other",
            "--unset",
            "data.validation",
            "--unset",
            "evaluate.every",
            "--set",
            "run.folder=with",
            expect=2,
        )
        self.assertIn("data.train", result.stderr)
        result = harness.run(
            "bench",
            "data",
            "--folder",
            "sharded/train",
            *("--workers", "1", "--seconds", "0.1"),
            cwd=self.folder,
        )
        self.assertEqual(result.returncode, 0, result.text)

    def test_inspect(self):
        for kind, words in (
            ("values", "targets: values (3 values)"),
            ("classes", "targets: classes (4 classes)"),
            ("pixels", "targets: pixels (3 classes for each of 6 x 8 pixels)"),
            ("field", "targets: field (2 components for each of 6 x 8 pixels)"),
        ):
            self.deck_of(kind)
            self.shard("train", "--overwrite")
            one = harness.run("inspect", "sharded/train/shard_00000.h5", cwd=self.folder)
            self.assertIn(words, one.stdout)
            whole = harness.run("inspect", "sharded/train", cwd=self.folder)
            self.assertEqual(whole.returncode, 0, whole.stderr)
            self.assertIn("%d samples [6,8,2]" % SAMPLES, whole.stdout)
            self.assertIn(words, whole.stdout)

    def test_damage(self):
        """A changed number is found by `verify`, and by training with data.verify."""
        self.deck_of("values")
        for name, row in (("targets", 12), ("images", HEIGHT * WIDTH * 8)):
            self.shard("train", "--overwrite")
            path = self.path("sharded/train/shard_00000.h5")
            with h5py.File(path) as file:
                place = file[name].id.get_offset() + 5 * row + 1
            with open(path, "r+b") as file:
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1]))
            result = harness.run("verify", "sharded/train", cwd=self.folder)
            self.assertEqual(result.returncode, 2)
            self.assertIn("damaged", result.stderr)
            words = ("--set", "data.train=sharded/train", "--set", "data.verify=1")
            result = self.train(*words, expect=2)
            self.assertIn("block 0 of /images and /targets", result.stderr)

    def test_shards_of_others(self):
        """Attributes of packed values do not matter in /images, and target.ignore does without
        _FillValue. Shards and files may be in one folder."""
        self.deck_of("pixels")
        self.shard("train", out="mine")
        with h5py.File(self.path("mine/shard_00000.h5")) as file:
            images, targets = file["images"][:], file["targets"][:]
        os.mkdir(self.path("theirs"))
        text = open(self.path("deck.toml")).read()
        self.without_table()
        for kind in ("u1", "u2", "f2", "f4"):
            losses = []
            for attributes in ({}, {"scale_factor": 2.0, "_FillValue": 1, "add_offset": 7}):
                with h5py.File(self.path("theirs/a.h5"), "w") as file:
                    file.attrs["format"] = "trireme-shard"
                    file["images"] = (images * 200).astype(kind)
                    file["images"].attrs.update(attributes)
                    file["targets"] = targets
                    file["targets"].attrs.update({"kind": "pixels", "classes": CLASSES})
                words = ("--set", "data.train=theirs", "--unset", "data.validation")
                words += ("--unset", "evaluate.every", "--set", "run.folder=" + kind)
                ignored = ("--set", "target.ignore=255", "--restart", "none")
                self.train(*words, *ignored)
                losses.append(harness.losses(self.path(kind)))
            self.assertEqual(len(losses[0]), 6)
            self.assertEqual(losses[0], losses[1])
        result = self.train(*words, "--restart", "none", expect=2)
        self.assertIn("255", result.stderr)
        self.write_deck(text)
        os.mkdir(self.path("mixed"))
        shutil.copy(self.path("mine/shard_00000.h5"), self.path("mixed"))
        shutil.copy(self.path("train.h5"), self.path("mixed/a.h5"))
        self.train("--set", "data.train=mixed", "--set", "run.folder=mixed_run")

    def test_encoded_images_have_classes(self):
        self.deck_of("values")
        os.makedirs(self.path("photos/a"))
        os.makedirs(self.path("photos/b"))
        for i in range(16):
            pixels = np.full((32, 32, 3), i * 9, np.uint8)
            Image.fromarray(pixels).save(self.path("photos", "ab"[i % 2], "%d.png" % i))
        words = ("shard", "folder", "photos", "--encode", "png", "--out", "png")
        self.assertEqual(harness.run(*words, cwd=self.folder).returncode, 0)
        unset = [
            word
            for key in ("input", "target", "layout", "fill")
            for word in ("--unset", "data.hdf5." + key)
        ]
        words = (
            "--set",
            "data.train=png",
            "--unset",
            "data.validation",
            "--unset",
            "evaluate.every",
        )
        words += ("--set", "data.augment.random_resized_crop={size=16}")
        result = self.train(*words, *unset, "--unset", "target.normalize", expect=2)
        self.assertIn('targets of kind "class", but target.kind = "values"', result.stderr)

    def test_files_have_no_checksums(self):
        self.deck_of("values")
        result = self.train("--set", "data.verify=1", expect=2)
        self.assertIn("make shards of it with `trireme shard hdf5`", result.stderr)

    def test_table_of_shards(self):
        """Shards are refused by a deck that reads files otherwise than the one they are from."""
        self.deck_of("values")
        sharded = self.both()
        for words, told in (
            (("data.hdf5.fill=0.75",), "made with data.hdf5.fill = 0.5, but the deck has"),
            (('data.hdf5.input=["v","u"]',), 'made with data.hdf5.input = ["/u", "/v"]'),
            (('data.hdf5.transform="log1p"',), 'made with data.hdf5.transform = "none"'),
        ):
            sets = [word for one in words for word in ("--set", one)]
            result = self.train(*sharded, *sets, expect=2)
            self.assertIn(told, result.stderr)
            self.assertIn("shard_00000.h5", result.stderr)
        # Paths may begin with "/" or not, and target.normalize belongs to training.
        self.train(*sharded, "--set", 'data.hdf5.input=["/u","v"]', "--unset", "target.normalize")

    def test_prediction_after_training_on_shards(self):
        self.deck_of("values")
        self.train("--set", "run.folder=files")
        self.train("--set", "run.folder=shards", *self.both())
        for name in ("files", "shards"):
            words = (
                "predict",
                name + "/checkpoints/best.h5",
                "validation.h5",
                "--out",
                name + ".h5",
            )
            result = harness.run(*words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.stderr)
        with h5py.File(self.path("files.h5")) as one, h5py.File(self.path("shards.h5")) as other:
            np.testing.assert_array_equal(one["value"][:], other["value"][:])

    def test_kinds_are_not_mixed_up(self):
        self.deck_of("values")
        sharded = self.both()
        self.deck_of("class")
        result = self.train(*sharded, expect=2)
        self.assertIn('made with data.hdf5.target = ["/scalar", "/vector"], but', result.stderr)
        without = ("data.hdf5.input", "data.hdf5.target", "data.hdf5.layout", "data.hdf5.fill")
        unset = [word for key in without for word in ("--unset", key)]
        result = self.train(*sharded, *unset, expect=2)
        self.assertIn('targets of kind "values", but target.kind = "class"', result.stderr)
        images = self.path("plain")
        harness.make_dataset(images, 20)
        kind = ("--set", 'target.kind="values"')
        result = self.train("--set", "data.train=plain", *unset, *kind, expect=2)
        self.assertIn('targets of kind "class", but target.kind = "values"', result.stderr)
        self.assertIn("`trireme shard hdf5` makes shards of other targets", result.stderr)

    def test_wrong_commands(self):
        self.deck_of("values")
        for split, words, told in (
            ("test", (), "has no data.test, which --split names"),
            ("best", (), "--split best: is none of train, validation and test"),
            ("train", ("--shards", "41"), "--shards 41: there are only 40 samples"),
            ("train", ("--range", "0:41"), "the source has samples 0:40"),
            ("train", ("--resize", "8x8"), "--resize belongs to another format"),
        ):
            result = self.shard(split, *words, expect=2)
            self.assertIn(told, result.stderr)
            self.assertFalse(os.path.exists(self.path("sharded")))
        result = harness.run("shard", "hdf5", "train.h5", "--out", "x", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn(
            "train.h5: is an HDF5 file, but `shard hdf5` takes the deck that describes",
            result.stderr,
        )
        os.mkdir(self.path("files"))
        shutil.copy(self.path("train.h5"), self.path("files/train.h5"))
        files = ("--set", "data.train=files")
        for out in ("files", "files/"):
            result = self.shard("train", *files, expect=2, out=out)
            self.assertIn("would be read with files the next time", result.stderr)
        # Another set of the deck would include them.
        for place in ("files", "*/shard*.h5"):
            words = ("--set", "data.validation=" + place)
            result = self.shard("train", *words, expect=2, out="files")
            self.assertIn("would be read with %s the next time" % place, result.stderr)
        with h5py.File(self.path("train.h5"), "r+") as file:
            file["vector"][7, 1] = np.inf
        result = self.shard("train", expect=2)
        self.assertIn("/vector: sample 7 has a target that is missing, infinite", result.stderr)
        self.assertFalse(os.path.exists(self.path("sharded")))


if __name__ == "__main__":
    harness.main(at_once=2)
