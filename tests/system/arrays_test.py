# SPDX-License-Identifier: Apache-2.0
"""Tests training on HDF5 and netCDF-4 files of other programs ([data.hdf5]).

The files are written by h5py, netCDF4 and xarray. Where the values are equal, however they are
stored, the weights after training have equal bits: those of a run on a shard of the same values.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest

import harness

try:
    import h5py
    import numpy as np
    from array_case import DECK, LABELS, SAMPLES, SIDE, ArrayCase, fields
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Arrays(ArrayCase):
    def test_h5py(self):
        self.shard(self.x)
        expected = self.weights("shard")
        x, half = self.x[..., 0], SAMPLES // 2
        packed = {"chunks": (5, 3, SIDE), "compression": "gzip", "shuffle": True}
        for name, value, target in (
            ("plain", x, LABELS),
            ("double", x.astype("f8"), LABELS.astype("u1")),
            ("other_order", x.astype(">f8"), LABELS.astype(">i2")),
            ("half", x.astype("f2").astype("f4"), LABELS.astype("f4")),
            ("whole", ((4 * x).astype(">i2"), packed), LABELS.reshape(-1, 1, 1)),
            ("chunked", (x.astype(">f4"), packed), (LABELS.astype("i8"), {"chunks": (7,)})),
        ):
            for part, rows in (("a", slice(half)), ("b", slice(half, None))):
                cut = lambda v: (v[0][rows], v[1]) if isinstance(v, tuple) else v[rows]
                self.write("%s/%s.hdf5" % (name, part), **{"x": cut(value), "y": cut(target)})
                if name == "whole":
                    with h5py.File(self.path(name, part + ".hdf5"), "a") as file:
                        file["x"].attrs["scale_factor"] = np.float32(0.25)
            with self.subTest(name):
                self.assertEqual(self.weights(name, self.table()), expected)
        self.assertEqual(self.weights("chunked/?.hdf5", self.table(), ranks=2), expected)

    def test_class_weights(self):
        """Equal weights change no bit; those of one class let the network learn it alone."""
        self.write("data/a.h5", x=self.x[..., 0], y=LABELS)
        expected = self.weights("data", self.table())
        words = ("--set", "loss.class_weights=[2, 2, 2, 2]")
        self.assertEqual(self.weights("data", self.table(), *words, ranks=2), expected)
        words = ("--set", "loss.class_weights=[0, 0, 1, 0]", "--set", "monitor.every=1 step")
        self.weights("data", self.table(), *words)
        rows = harness.read_rows(self.path("run_%d" % self.runs), "train")
        self.assertLess(rows[-1]["loss"], 0.3 * rows[0]["loss"])
        self.assertEqual(rows[-1]["top1"], 1)
        words = ("--set", "loss.class_weights=[1, 1]", "--set", "data.train=data")
        text = self.train(*words, "--set", "data.validation=data", expect=2).text
        self.assertIn("loss.class_weights has 2 numbers, but data.train", text)

    def test_fill(self):
        """Inputs that are missing, infinite or NaN are those of data where the number stands."""
        x = self.x.copy()
        gaps = np.random.default_rng(3).random(x.shape) < 0.1
        x[gaps] = 3
        self.shard(x)
        expected = self.weights("shard")
        self.shard(np.log1p(np.abs(x).astype("f8")).astype("f4"), "logs")
        x, gaps, more = x[..., 0], gaps[..., 0], "fill = 3.0\n"
        packed = np.where(gaps, -9999, 4 * x).astype("i2")
        for name, value, attributes in (
            ("nan", np.where(gaps, np.nan, x), {}),
            ("infinite", np.where(gaps, -np.inf, x).astype(">f8"), {}),
            ("half", np.where(gaps, np.nan, x).astype("f2"), {}),
            ("marked", np.where(gaps, 1e20, x).astype("f4"), {"_FillValue": np.float32(1e20)}),
            ("packed", packed, {"scale_factor": 0.25, "missing_value": np.int16(-9999)}),
        ):
            with self.subTest(name):
                self.write(name + "/a.h5", x=value, y=LABELS)
                with h5py.File(self.path(name, "a.h5"), "a") as file:
                    file["x"].attrs.update(attributes)
                self.assertEqual(self.weights(name, self.table(more=more)), expected)
        self.write("positive/a.h5", x=np.where(gaps, np.nan, abs(x)), y=LABELS)
        table = self.table(more=more + 'transform = "log1p"\n')
        self.assertEqual(self.weights("positive", table), self.weights("logs"))
        # Integers are used as they are.
        self.write("bytes/a.h5", x=abs(x).astype("u1"), y=LABELS)
        found = self.weights("bytes", self.table(more=more))
        self.assertEqual(found, self.weights("bytes", self.table()))
        self.write("other/a.h5", x=np.where(gaps, 1e300, x), y=LABELS)
        words = ("--set", "data.train=other", "--set", "data.validation=other")
        self.write_deck(DECK % self.table(more=more))
        text = self.train(*words, expect=2).text
        self.assertIn("data.hdf5.fill replaces no number of this size", text)

    def test_logarithms(self):
        """log1p is that of numpy in float64, of every type; numbers of -1 or less are refused."""
        counts = np.abs(self.x).astype("u2")
        self.shard(np.log1p(counts.astype("f8")).astype("f4"))
        expected = self.weights("shard")
        more = 'transform = "log1p"\n'
        for type in ("u2", ">f8", "i4", "f2"):
            with self.subTest(type):
                self.write("logs/a.h5", x=counts[..., 0].astype(type), y=LABELS)
                self.assertEqual(self.weights("logs", self.table(more=more)), expected)
        # The stored number counts, and not its float32.
        near = np.full((SAMPLES, SIDE, SIDE), 1e-9 - 1)
        near[:, 0] = 1e200
        self.write("near/a.h5", x=near, y=LABELS)
        self.write_deck(DECK % self.table(more=more))
        words = ("--set", "data.train=near", "--set", "data.validation=near")
        text = harness.run("check", "deck.toml", *words, "--statistics", "--json", cwd=self.folder)
        found = json.loads(text.stdout)["statistics"]
        self.assertAlmostEqual(found["mean"][0], np.log1p(near).mean(), delta=1e-4)
        # An evaluation reads as training did.
        run = "run_%d/checkpoints/step_000000010.h5" % self.runs
        words = ("--set", "data.validation=logs", "--set", "data.train=logs")
        words += ("--checkpoint", run, "--set", "data.hdf5.transform=none")
        result = harness.run("evaluate", "deck.toml", *words, cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("its model was trained with data.hdf5.transform", result.text)
        for setting, key in (
            ("data.augment.normalize={ mean = [1.0], std = [2.0] }", "data.augment.normalize"),
            ("data.hdf5.input=x2", "data.hdf5.input"),
            ("data.hdf5.layout=wh", "data.hdf5.layout"),
        ):
            with h5py.File(self.path("logs/a.h5"), "a") as file:
                if "x2" not in file:
                    file["x2"] = file["x"][:]
            result = harness.run(
                "evaluate", "deck.toml", *words[:-2], "--set", setting, cwd=self.folder
            )
            self.assertEqual(result.returncode, 0, result.text)
            self.assertIn("its model was trained with %s: " % key, result.text)
        result = harness.run("evaluate", "deck.toml", *words[:-2], cwd=self.folder)
        self.assertNotIn("was trained with", result.text)
        below = counts[..., 0].astype("f4")
        below[7, 3, 2] = -1
        self.write("other/a.h5", x=below, y=LABELS)
        table = self.table(more=more)
        words = "/x: sample 7 has a value that is missing, infinite, NaN, or -1 or less (h 3, w 2"
        self.write_deck(DECK % table)
        sets = ("--set", "data.train=other/a.h5", "--set", "data.validation=other/a.h5")
        self.assertIn(words, self.train(*sets, expect=2).text)

    def test_bits_of_images_stay_as_they_are(self):
        """uint8, uint16 and float16 are images of these types: integers are scaled to 0..1."""
        rng = np.random.default_rng(3)
        for kind in ("u1", "u2", "f2"):
            images = rng.integers(0, 200, (SAMPLES, SIDE, SIDE, 3)).astype(kind)
            with self.subTest(kind):
                self.shard(images)
                expected = self.weights("shard")
                self.write("other/a.h5", x=images, y=LABELS)
                table = self.table(layout="hwc")
                self.assertEqual(self.weights("other", table), expected)
                first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
                self.write("other/a.h5", x=first, y=LABELS)
                table = self.table(layout="chw")
                self.assertEqual(self.weights("other", table), expected)

    def test_inputs_are_stacked_as_channels(self):
        images = fields(5)
        self.shard(images)
        expected = self.weights("shard")
        group = {
            "sim/a": images[..., 0],
            "sim/b": (images[..., 1].astype("f8"), {"chunks": (3, 4, 4), "compression": "gzip"}),
            "sim/c": images[..., 2].astype(">f4"),
        }
        self.write("other/a.h5", **group, y=LABELS)
        self.shard(images[..., :3])
        table = self.table(("sim/a", "sim/b", "sim/c"))
        self.assertEqual(self.weights("other/a.h5", table), self.weights("shard"))
        parts = {
            "p": np.ascontiguousarray(images[..., :2].transpose(0, 3, 1, 2)),
            "q": np.ascontiguousarray(images[..., 2:].transpose(0, 3, 1, 2)),
        }
        self.write("other/a.h5", **parts, y=LABELS)
        self.assertEqual(self.weights("other", self.table(("p", "q"), layout="chw")), expected)

    def test_numbers_are_vectors_of_one(self):
        images = self.x[:, :1, :1]
        self.shard(np.concatenate([images, images**2], 3))
        model = ("--set", "model.kind=mlp", "--set", "model.widths=[8]")
        drop = [
            w for key in ("depth", "width", "norm", "stem") for w in ("--unset", "model." + key)
        ]
        expected = self.weights("shard", "", *model, *drop)
        self.write(
            "other/a.h5",
            mass=images[:, 0, 0, 0].astype("f8"),
            energy=(images[:, 0, 0, 0] ** 2, {"chunks": (7,), "compression": "gzip"}),
            y=LABELS,
        )
        table = self.table(("mass", "energy"), layout="c")
        self.assertEqual(self.weights("other", table, *model, *drop), expected)

    def test_a_file_can_be_a_sample(self):
        self.shard(self.x)
        expected = self.weights("shard")
        for i in range(SAMPLES):
            options = {"chunks": (3, 5), "compression": "gzip"} if i % 2 else {}
            self.write("files/s%03d.h5" % i, x=(self.x[i, ..., 0], options), y=LABELS[i])
        table = self.table(more='samples = "files"\n')
        self.assertEqual(self.weights("files", table), expected)
        self.assertEqual(self.weights("files", table, ranks=2), expected)

    def write_netcdf(self):
        """Writes the files of netcdf_files.py, or skips the test."""
        if (
            importlib.util.find_spec("netCDF4") is None
            or importlib.util.find_spec("xarray") is None
        ):
            self.skipTest("no netCDF4 or xarray (scripts/install_deps.sh tests)")
        np.save(self.path("x.npy"), self.x[..., 0])
        np.save(self.path("labels.npy"), LABELS)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "netcdf_files.py")
        subprocess.run(
            [sys.executable, script, self.folder, self.path("x.npy"), self.path("labels.npy")],
            check=True,
        )

    def test_netcdf4(self):
        self.shard(self.x)
        expected = self.weights("shard")
        self.write_netcdf()
        for name in ("plain", "packed"):
            with self.subTest(name):
                table = self.table(name, "regime")
                self.assertEqual(self.weights("nc", table), expected)
        self.write_deck(DECK % self.table("half", "regime"))
        result = self.train("--set", "data.train=nc", "--set", "data.validation=nc", expect=2)
        self.assertIn("/half: sample ", result.text)
        self.assertIn("has a value that is missing", result.text)
        text = harness.run("inspect", self.path("nc/a.nc")).stdout
        self.assertIn("int16 [20, 8, 8], chunked [1, 8, 8], compressed, ", text)
        self.assertIn("value = stored * 0.25 + 16, missing: -32767", text)
        self.assertNotIn("/lat", text)

    def test_xarray(self):
        self.shard(self.x)
        expected = self.weights("shard")
        self.write_netcdf()
        for name in ("plain.nc", "packed.nc4"):
            with self.subTest(name):
                self.assertEqual(self.weights("xr/" + name, self.table("z", "k")), expected)
        # The proposed table is one that works.
        text = harness.run("inspect", self.path("xr/plain.nc")).stdout
        proposed = text[text.index("[data.hdf5]") :]
        self.assertEqual(self.weights("xr/plain.nc", proposed), expected)
        described = json.loads(harness.run("inspect", "--json", self.path("xr/plain.nc")).stdout)
        self.assertEqual(described["hdf5"], {"input": ["/z"], "target": ["/k"], "layout": "hw"})

    def test_values_that_are_not_finite_end_the_run(self):
        x = self.x[..., 0].copy()
        x[5, 2, 3] = np.nan
        self.write("other/a.h5", x=x, y=LABELS)
        self.write_deck(DECK % self.table())
        set_folder = ("--set", "data.train=other", "--set", "data.validation=other")
        result = self.train(*set_folder, expect=2)
        self.assertIn("a.h5: /x: sample 5 has a value that is missing", result.text)
        self.assertIn("(h 2, w 3, c 0)", result.text)
        x[5, 2, 3] = -9999
        self.write("other/a.h5", x=x.astype("i2"), z=self.x[..., 0], y=LABELS)
        with h5py.File(self.path("other/a.h5"), "a") as file:
            file["x"].attrs["missing_value"] = np.array([-9999], "i2")
        self.write_deck(DECK % self.table(("z", "x")))
        result = self.train(*set_folder, "--set", "run.folder=run2", expect=2)
        self.assertIn("a.h5: /x: sample 5 has a value that is missing", result.text)

    def test_a_missing_value_of_another_type(self):
        """The attribute has the value 1e20 as float64, the dataset as float32."""
        x = self.x[..., 0].copy()
        x[7, 1, 2] = 1e20
        self.write("other/a.h5", x=x, y=LABELS)
        with h5py.File(self.path("other/a.h5"), "a") as file:
            file["x"].attrs["_FillValue"] = 1e20
        self.write_deck(DECK % self.table())
        set_folder = ("--set", "data.train=other", "--set", "data.validation=other")
        self.assertIn(
            "sample 7 has a value that is missing", self.train(*set_folder, expect=2).text
        )

    def test_a_scale_that_changes_nothing(self):
        """Says that numbers are no pixels: they are not divided by 255."""
        x = (np.abs(self.x[..., 0]) * 2).astype("u1")
        self.write("other/a.h5", x=x.astype("f4"), y=LABELS)
        self.write_deck(DECK % self.table())
        expected = self.weights("other", self.table())
        for attributes in ({"scale_factor": 1.0}, {"add_offset": 0.0, "scale_factor": 1.0}):
            self.write("other/a.h5", x=x, y=LABELS)
            with h5py.File(self.path("other/a.h5"), "a") as file:
                file["x"].attrs.update(attributes)
            self.assertEqual(self.weights("other", self.table()), expected)

    def test_wrong_files_are_refused(self):
        x = self.x[..., 0]
        good = {"x": x, "y": LABELS}
        self.write("other/a.h5", **good)
        self.refuse("the file has no such dataset; it has /x [48, 8, 8]", table=self.table("z"))
        self.refuse("has 3 dimensions [48, 8, 8], but", table=self.table(layout="hwc"))
        self.refuse("classes are one number for each sample", table=self.table(target="x"))
        self.refuse("names 2 datasets, but a class is one", table=self.table(target=("x", "y")))
        self.refuse("no such file or folder", "--set", "data.train=other/b.h5")
        self.refuse("no file matches", "--set", "data.train=other/*.nc")
        self.refuse("contains no *.h5", "--set", "data.train=.")
        for words, changed in (
            ("holds text", {"x": np.array([b"one", b"two"])}),
            ("holds no plain numbers", {"x": np.zeros(SAMPLES, "i4,f4")}),
            ("has 47 numbers for the 48 samples", {"y": LABELS[1:]}),
            ("-1 of sample 0 is not a class", {"y": LABELS - 1}),
            ("0.5 of sample 0 is not a class", {"y": LABELS + 0.5}),
            ("uses the filter 32000 (lzf)", {"x": (x, {"compression": "lzf"})}),
        ):
            with self.subTest(words):
                self.write("other/a.h5", **(good | changed))
                self.refuse(words)
        for name, value, words in (
            ("_Unsigned", "true", "which this program does not follow"),
            ("scale_factor", np.inf, "must be finite"),
            ("scale_factor", "two", "must be a number"),
            ("_FillValue", [1.0, 2.0], "has 2 values"),
        ):
            with self.subTest(name):
                self.write("other/a.h5", **good)
                with h5py.File(self.path("other/a.h5"), "a") as file:
                    file["x"].attrs[name] = value
                self.refuse(words)
        self.write("other/a.h5", **good)
        self.write("other/b.h5", x=x[:, :4], y=LABELS)
        self.refuse("among images of 8 x 8 x 1", "--set", "data.train=other")
        layout = h5py.VirtualLayout((SAMPLES, SIDE, SIDE), "f4")
        layout[:] = h5py.VirtualSource(self.path("other/b.h5"), "x", (SAMPLES, SIDE, SIDE))
        with h5py.File(self.path("other/a.h5"), "w") as file:
            file.create_virtual_dataset("x", layout)
        self.refuse("is a virtual dataset")

    def test_predict_without_targets(self):
        """Answers are those of evaluate, on bytes, of the file and its mirror images."""
        x = fields()[..., 0].astype("u1")
        self.write("all/a.h5", x=x, y=LABELS)
        self.write("new.h5", x=x)
        self.weights("all/a.h5", self.table(), "--set", "model.width=4")
        best, common = "run_1/checkpoints/step_000000010.h5", ("index", "predicted", "top_class")
        for i, option in enumerate(((), ("--flip",), ("--top", "2"))):
            known, new = "known_%d.h5" % i, "new_%d.h5" % i
            words = ("evaluate", "run_1/deck.toml", "--checkpoint", best, "--predictions", known)
            result = harness.run(*words, *option, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            words = ("predict", best, "new.h5", "--out", new, *option)
            result = harness.run(*words, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            with h5py.File(self.path(known)) as a, h5py.File(self.path(new)) as b:
                for name in (*common, "top_probability", "classes"):
                    self.assertTrue((a[name][:] == b[name][:]).all(), name)
                self.assertEqual(a.attrs["flip"], b.attrs["flip"])
                self.assertFalse({"label", "loss"} & set(b))

    def test_the_guide(self):
        """Follows docs/guides/scientific_data.md."""
        with open(os.path.join(ROOT, "docs/guides/scientific_data.md")) as page:
            blocks = re.findall(r"```(\w*)\n(.*?)```", page.read(), re.DOTALL)
        blocks = [text for language, text in blocks]
        written = {}
        for text in blocks:
            name = re.match(r"# (\w+\.(py|toml))\n", text)
            if name:
                written[name[1]] = text
                with open(self.path(name[1]), "w") as file:
                    file.write(text)
        self.assertEqual(set(written), {"make_kinds.py", "kinds.toml"})
        subprocess.run([sys.executable, "make_kinds.py"], cwd=self.folder, check=True)
        shown = next(text for text in blocks if text.startswith("train.h5: HDF5"))
        self.assertEqual(harness.run("inspect", "train.h5", cwd=self.folder).stdout, shown)
        self.assertIn(shown[shown.index("[data.hdf5]") :], written["kinds.toml"])
        harness.run("check", "kinds.toml", cwd=self.folder)
        self.train(deck="kinds.toml")
        rows = harness.read_rows(self.path("runs/kinds"), "evaluate")
        self.assertGreater(rows[-1]["top1"], 0.95)
        commands = next(text for text in blocks if text.startswith("trireme shard hdf5"))
        for line in commands.replace("\\\n", " ").splitlines():
            result = harness.run(*line.split()[1:], cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
        again = harness.read_rows(self.path("runs/sharded"), "evaluate")
        self.assertEqual([row["loss"] for row in again], [row["loss"] for row in rows])
        self.assertIn(": whole", harness.run("verify", "sharded/train", cwd=self.folder).stdout)


if __name__ == "__main__":
    unittest.main()
