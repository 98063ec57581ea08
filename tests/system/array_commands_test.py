# SPDX-License-Identifier: Apache-2.0
"""Tests what commands say of HDF5 files of other programs: lists and tables of `inspect`, notes of
`check`, and what such files may hold besides.
"""

import os
import unittest

import harness

try:
    import h5py
    import numpy as np
    from array_case import DECK, LABELS, SAMPLES, SIDE, ArrayCase
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)


class ArrayCommands(ArrayCase):
    def test_other_datasets_of_the_file_do_not_matter(self):
        self.shard(self.x)
        expected = self.weights("shard")
        self.write("other/a.h5", x=self.x[..., 0], y=LABELS)
        with h5py.File(self.path("other/a.h5"), "a") as file:
            file.attrs["format"] = "simulation"
            file.attrs["DIMENSION_LIST"] = np.zeros((2, 2))
            for name in ("a", "b", "c"):  # Never written, and in many chunks.
                file.create_dataset(name, shape=(1_900_000,), chunks=(1,), dtype="u1")
            file["text"] = np.array([b"one", b"two"])
            file["pairs"] = np.zeros(4, "i4,f4")
            file["link"] = h5py.SoftLink("/x")
        self.assertEqual(self.weights("other", self.table()), expected)
        for form in (np.float32(1), np.arange(4), "simulation"):
            with h5py.File(self.path("other/a.h5"), "a") as file:
                file.attrs["format"] = form
                if "table" not in file:  # a name that shards have
                    file["table"] = np.zeros(3)
            self.assertEqual(self.weights("other", self.table()), expected)
        self.assertEqual(self.weights("other", self.table("link")), expected)
        text = harness.run("inspect", self.path("other/a.h5")).stdout
        self.assertIn("/a: cannot be read (", text)
        self.assertIn('"/x"', text[text.index("[data.hdf5]") :])

    def test_proposed_tables(self):
        """Maps may be smaller than inputs, and names of targets go before other numbers."""
        x, rng = self.x[..., 0], np.random.default_rng(5)
        half = rng.integers(0, 3, (SAMPLES, SIDE // 2, SIDE // 2))
        numbers = {name: rng.normal(size=SAMPLES) for name in ("time", "target_mass", "run")}
        for content, lines in (
            ({"mask": half}, ('target = "/mask"', "maps that are 2 times smaller")),
            ({"mask": half[:, 1:]}, ("no table is proposed",)),
            (numbers, ('target = "/target_mass"', 'kind = "values"')),
            ({"run": numbers["run"], "mass": numbers["time"]}, ('target = ["/mass", "/run"]',)),
        ):
            self.write("other/a.h5", x=x, **content)
            text = harness.run("inspect", self.path("other/a.h5")).stdout
            for line in lines:
                self.assertIn(line, text)

    def test_notes_on_classes(self):
        x, deck = self.x[..., 0], DECK % self.table()
        begin, end = deck.index("[model]"), deck.index("[data]")
        block = '{ kind = "conv", channels = 4, kernel = 1 }'
        chain = '[model]\nkind = "chain"\nblocks = [%s]\n' % block
        target = '[target]\nkind = "pixels"\nclasses = 4\nignore = 3\n'
        maps = deck[:begin] + chain + deck[end:] + target
        mask, some = np.full(x.shape, 3), np.arange(SAMPLES)[:, None, None] % 4
        for y, text, note in (
            (LABELS, deck, None),
            (LABELS + 1, deck, "no sample has class 0; classes are numbered from 0"),
            (np.where(LABELS == 1, 3, LABELS), deck, "no sample has class 1"),
            (mask, maps, "no pixel of 32 samples counts; is target.ignore right?"),
            (mask - 1, maps, "no pixel of 32 samples has class 0; classes are numbered from 0"),
            (mask - some, maps, None),
        ):
            self.write("other/a.h5", x=x, y=y)
            self.write_deck(text)
            places = ("--set", "data.train=other", "--set", "data.validation=")
            result = harness.run("check", "deck.toml", *places, cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            if note:
                self.assertIn(note, result.text)
            else:
                self.assertNotIn("class 0", result.text)
                self.assertNotIn("no sample", result.text)

    def test_other_commands_on_files_of_other_programs(self):
        self.write("other/a.nc", x=self.x[..., 0])
        text = harness.run("inspect", self.path("other/a.nc")).stdout
        self.assertIn("no table is proposed", text)
        self.assertIn('[data.hdf5]\ninput = "/x"\ntarget = "/..."\nlayout = "hw"', text)
        result = harness.run("inspect", self.path("other"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("of other programs are read with [data.hdf5]", result.text)
        result = harness.run("verify", self.path("other/a.nc"))
        self.assertEqual(result.returncode, 0, result.text)
        self.assertIn("no checksums: a file of another program", result.text)
        self.write("other/a.h5", x=self.x[:0, ..., 0], y=LABELS[:0])
        self.refuse("its 1 file has no sample", table=self.table())

    def test_what_leads_out_of_a_file(self):
        """Matters only where it is used; `inspect` lists it."""
        x = self.x[..., 0]
        self.write("other/b.h5", x=x, y=LABELS)
        os.rename(self.path("other/b.h5"), self.path("outside.h5"))
        self.write("other/a.h5", x=x, y=LABELS)
        with h5py.File(self.path("other/a.h5"), "a") as file:
            file["entry/data"] = h5py.ExternalLink("outside.h5", "/x")
            file["circle"] = h5py.SoftLink("/circle")
            layout = h5py.VirtualLayout(x.shape, "f4")
            layout[:] = h5py.VirtualSource("outside.h5", "x", x.shape)
            file.create_virtual_dataset("virtual", layout)
        self.write_deck(DECK % self.table())
        words = ("--set", "data.train=other", "--set", "data.validation=")
        result = harness.run("check", "deck.toml", *words, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.text)
        text = harness.run("inspect", "other/a.h5", cwd=self.folder).stdout
        for name, why in (
            ("entry/data", "is a link into another file"),
            ("circle", "its links form a circle"),
            ("virtual", "is a virtual dataset"),
        ):
            self.assertIn("  /%s: cannot be read (" % name, text)
            self.assertIn("/%s: %s" % (name, why), text)
            self.refuse(why, "--set", "data.train=other", "--set", "data.hdf5.input=/" + name)
        self.assertIn('input = "/x"', text)

    def test_check_warns_of_large_chunks(self):
        self.write_deck(DECK % self.table())
        options = {"chunks": (6, SIDE, SIDE), "compression": "gzip"}
        for samples, warns in ((6, True), (4, False)):
            options["chunks"] = (samples, SIDE, SIDE)
            self.write("other/a.h5", x=(self.x[..., 0], options), y=LABELS)
            words = ("check", "deck.toml", "--set", "data.train=other", "--set", "data.validation=")
            text = harness.run(*words, cwd=self.folder).text
            self.assertEqual("chunks of 6 samples" in text, warns, text)
            text = harness.run(*words, "--set", "data.shuffle=blocks", cwd=self.folder).text
            self.assertNotIn("chunks of", text)

    def test_a_folder_of_other_files_names_the_table(self):
        self.write("other/a.h5", x=self.x[..., 0], y=LABELS)
        self.write_deck(DECK % "")
        result = self.train("--set", "data.train=other", expect=2)
        self.assertIn("give the deck a table [data.hdf5]", result.text)


if __name__ == "__main__":
    unittest.main()
