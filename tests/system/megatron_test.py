# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme shard tokens` with the files of Megatron-LM: tokens and an index of documents."""

import glob
import os
import random
import shutil
import struct

import harness

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")

import tokens_test


class Megatron(tokens_test.TokenFolder):
    CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}

    def write_megatron(self, name, documents, kind, bounds=None, code=None, **other):
        """Writes NAME.bin and NAME.idx as Megatron-LM does. `documents`: lists of sequences."""
        sequences = [sequence for document in documents for sequence in document]
        lengths = np.array([len(sequence) for sequence in sequences], np.int32)
        size = np.dtype(kind).itemsize
        positions = (np.cumsum(lengths, dtype=np.int64) - lengths) * size
        if bounds is None:
            bounds = np.cumsum([0] + [len(document) for document in documents])
        values = {
            "magic": b"MMIDIDX\0\0",
            "version": struct.pack("<Q", 1),
            "code": struct.pack("<B", code or self.CODES[kind]),
            "counts": struct.pack("<QQ", len(sequences), len(bounds)),
            "lengths": lengths.tobytes(),
            "positions": positions.tobytes(),
            "bounds": np.asarray(bounds, np.int64).tobytes(),
            "modes": b"",
        }
        values.update(other)
        self.put(name + ".idx", b"".join(values.values()))
        self.put(name + ".bin", np.array(sum(sequences, []), kind).tobytes())

    def documents_of(self, folder):
        """Returns the documents of a dataset of one shard."""
        with h5py.File(self.path(folder, "shard_00000.h5")) as file:
            tokens, bounds = file["tokens"][:], file["documents"][:]
        return [list(tokens[a:b]) for a, b in zip(bounds, bounds[1:])]

    def test_megatron(self):
        rng = random.Random(3)
        documents = [
            [[rng.randrange(100) for _ in range(rng.randrange(1, 40))] for _ in range(1 + i % 3)]
            for i in range(20)
        ]
        documents[4] = [[]]  # a document without tokens is left out
        whole = [sum(document, []) for document in documents if sum(document, [])]
        shard = ("shard", "tokens")
        for kind in self.CODES:
            self.write_megatron("a", documents, kind)
            for source in ("a.bin", "a.idx"):
                text = self.succeed(
                    *shard, source, "--vocabulary", 100, "--out", "made", "--overwrite"
                )
                self.assertIn("19 documents", text)
                self.assertEqual(self.documents_of("made"), whole)
        # Several shards, ranks and files, and held-out ends.
        self.write_megatron("b", documents[:5], "int32", modes=bytes(len(sum(documents[:5], []))))
        options = ("--vocabulary", 100, "--shards", 3, "--hold-out", 0.1, "--hold-out-out", "held")
        for ranks in (1, 3):
            self.succeed(
                *shard, "a.idx", "b.bin", *options, "--out", "many", "--overwrite", ranks=ranks
            )
            tokens = list(self.tokens_of("many")) + list(self.tokens_of("held"))
            self.assertEqual(len(tokens), sum(map(len, whole)) + sum(map(len, whole[:4])))
        # Some writers leave the end of the last document out.
        ends = np.cumsum([0] + [len(document) for document in documents])
        self.write_megatron("a", documents, "uint16", bounds=ends[:-1])
        self.succeed(*shard, "a.bin", "--vocabulary", 100, "--out", "made", "--overwrite")
        self.assertEqual(self.documents_of("made"), whole)
        self.refuse(
            *shard,
            "a.bin",
            "--type",
            "uint16",
            "--vocabulary",
            "100",
            "--out",
            "x",
            saying="leave --type out",
        )
        self.refuse(
            *shard,
            "a.bin",
            "--vocabulary",
            "50",
            "--out",
            "x",
            saying="is outside the vocabulary of 50",
        )

    def test_both_files_of_a_set_are_one_source(self):
        a, b = [[[1, 2, 3], [4]], [[5]]], [[[6, 7]]]
        self.write_megatron("a", a, "uint16")
        self.write_megatron("b", b, "int32")
        os.symlink("a.idx", self.path("s.idx"))
        os.symlink("a.bin", self.path("s.bin"))
        one, two = [1, 2, 3, 4, 5], [6, 7]
        for sources, meant in {
            ("a.bin", "a.idx"): one,
            ("a.idx", "a.bin"): one,
            ("a.bin", "a.idx", "b.bin", "b.idx"): one + two,
            ("a.idx", "b.idx", "b.bin", "./a.bin"): one + two,
            ("a.bin", "s.idx"): one,
            ("a.bin", "a.bin"): one + one,
            ("a.bin", "b.bin", "a.bin", "a.idx"): one + two + one,
        }.items():
            self.succeed(
                *("shard", "tokens", *sources, "--vocabulary", 9), *("--out", "made", "--overwrite")
            )
            self.assertEqual(list(self.tokens_of("made")), meant, sources)

    def test_documents_end_with_a_token(self):
        documents = [[[1, 2], [3]], [[]], [[4, 8]], [[5]]]  # the third has its token already
        for kind in ("uint8", "int64"):
            self.write_megatron("a", documents, kind)
            for shards in (1, 4):
                self.succeed(
                    *("shard", "tokens", "a.bin", "--vocabulary", 9, "--end-of-text", 8),
                    *("--out", "made", "--overwrite", "--shards", shards),
                )
                self.assertEqual(list(self.tokens_of("made")), [1, 2, 3, 8, 4, 8, 5, 8])
        self.succeed(
            *("shard", "tokens", "a.bin", "--vocabulary", 9, "--end-of-text", 8),
            *("--out", "made", "--overwrite", "--hold-out", 3, "--hold-out-out", "held"),
        )
        self.assertEqual(list(self.tokens_of("held")), [8, 5, 8])
        self.refuse(
            *("shard", "tokens", "a.bin", "--vocabulary", 9, "--end-of-text", 9, "--out", "x"),
            saying="not in the vocabulary",
        )

    def test_shards_of_files_that_changed_are_not_kept(self):
        for change in ("bin", "idx"):
            self.write_megatron("a", [[[1] * 10]] * 300, "uint16")
            shard = ("shard", "tokens", "a." + ("idx" if change == "bin" else "bin"))
            options = ("--vocabulary", "9", "--shards", "600", "--out", "made")
            process = harness.start(*shard, *options, cwd=self.folder)
            sealed = self.path("made", ".making-*", "shard_*.h5")
            harness.wait_for(lambda: len(glob.glob(sealed)) > 2, "the first shards")
            harness.kill(process)
            before = self.read("a." + change)
            documents = [[[2] * 10]] * 300 if change == "bin" else [[[1] * 5]] * 600
            self.write_megatron("a", documents, "uint16")
            self.assertNotEqual(self.read("a." + change), before)
            result = harness.run(*shard, *options, "--overwrite", cwd=self.folder)
            self.assertEqual(result.returncode, 0, result.text)
            self.assertNotIn("kept", result.text)
            shutil.rmtree(self.path("made"))

    def test_indices_of_megatron_that_lie_are_refused(self):
        documents = [[[1, 2, 3], [4]], [[5, 6]]]
        huge = struct.pack("<QQ", 1 << 61, 3)
        for change, saying in (
            ({"magic": b"TNTIDX\0\0"}, "old form"),
            ({"magic": b"MMIDIDY\0\0"}, "begins with MMIDIDX"),
            ({"version": struct.pack("<Q", 2)}, "version 2 of the index"),
            ({"code": 6}, "its values are float64"),
            ({"code": 7}, "its values are float32"),
            ({"code": 9}, "the type 9 is not known"),
            ({"counts": huge}, "is cut short"),
            ({"counts": struct.pack("<QQ", (1 << 64) - 1, 3)}, "is cut short"),
            ({"counts": struct.pack("<QQ", 3, 1 << 61)}, "is cut short"),
            ({"counts": struct.pack("<QQ", 2, 3)}, "a.idx: "),
            ({"lengths": struct.pack("<iii", 3, -1, 4)}, "sequence 1 has -1 tokens"),
            ({"lengths": struct.pack("<iii", 3, 1, 3)}, "a.bin: has 24 bytes"),
            ({"positions": struct.pack("<qqq", 0, 16, 16)}, "expected byte 12"),
            ({"bounds": (0, 3, 2)}, "begins at sequence 2, after one at 3"),
            ({"bounds": (0, 2, 4)}, "it has 3 sequences"),
            ({"bounds": (-1, 2, 3)}, "begins at sequence -1"),
            ({"bounds": (1, 2, 3)}, "its first document begins at sequence 1, not at 0"),
            ({"modes": b"12"}, "2 bytes follow"),
        ):
            self.write_megatron("a", documents, "int32", **change)
            for source in ("a.idx",) + (("a.bin",) if "begins with" not in saying else ()):
                self.refuse(
                    "shard", "tokens", source, "--vocabulary", "9", "--out", "x", saying=saying
                )
        self.write_megatron("a", documents, "int32")
        with open(self.path("a.idx"), "rb") as file:
            index = file.read()
        for length in range(9, len(index)):
            self.put("a.idx", index[:length])
            if length % 7 == 0:
                self.refuse(
                    "shard", "tokens", "a.bin", "--vocabulary", "9", "--out", "x", saying="a.idx: "
                )
        # Holes of a file cost nothing: an index must not list more sequences than there are tokens.
        for counts in ((300_000_000, 0), (3, 400_000_000)):
            head = index[:18] + struct.pack("<QQ", *counts)
            self.put("a.idx", head)
            os.truncate(self.path("a.idx"), len(head) + 12 * counts[0] + 8 * counts[1])
            self.refuse(
                "shard", "tokens", "a.bin", "--vocabulary", "9", "--out", "x", saying="a.idx: lists"
            )
        os.remove(self.path("a.bin"))
        self.put("a.idx", index)
        self.refuse("shard", "tokens", "a.idx", "--vocabulary", "9", "--out", "x", saying="a.bin: ")


if __name__ == "__main__":
    harness.main(at_once=2)
