# SPDX-License-Identifier: Apache-2.0
"""Tests datasets of tokens: made from texts and numbers, described, verified, and read if made by
h5py."""

import array
import gzip
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import zipfile

import harness

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")

WORDS = [
    a + b + c
    for a in ("tri", "sal", "ath", "oar", "pi", "cor")
    for b in ("re", "am", "en", "s", "rae", "in")
    for c in ("me", "is", "a", "men", "us", "th")
]


def story(sentences, seed=1):
    rng = random.Random(seed)
    return "".join(
        " ".join(rng.choice(WORDS) for _ in range(8))
        + rng.choice((".\n", "!\n\n", ", \u00e4\u00df \U0001f6a3.\n"))
        for _ in range(sentences)
    )


class TokenFolder(unittest.TestCase):
    """A test with a folder for datasets of tokens."""

    @classmethod
    def setUpClass(cls):
        if not harness.TRIREME:
            harness.skip("TRIREME does not name the program")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="trireme-test-")

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def put(self, name, data):
        with (gzip.open if name.endswith(".gz") else open)(self.path(name), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else bytes(data))

    def read(self, *parts):
        with open(self.path(*parts), "rb") as file:
            return file.read()

    def succeed(self, *arguments, ranks=1):
        result = harness.run(*arguments, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, 0, "%s: %s" % (arguments, result.text))
        return result.stdout

    def refuse(self, *arguments, saying):
        result = harness.run(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
        self.assertIn(saying, result.text)

    def tokens_of(self, folder):
        """Checks offsets and attributes of a dataset, and returns all tokens in order and their
        type."""
        parts = []
        for name in sorted(name for name in os.listdir(self.path(folder)) if name.endswith(".h5")):
            with h5py.File(self.path(folder, name)) as file:
                self.assertEqual(
                    (file.attrs["format"], file.attrs["version"], file.attrs["kind"]),
                    ("trireme-shard", 1, "tokens"),
                )
                self.assertIsNone(file["tokens"].chunks)
                self.assertTrue((file["tokens"][...] < file.attrs["vocabulary"]).all())
                if "documents" in file:
                    offsets = file["documents"][...].astype(np.int64)
                    self.assertEqual((offsets[0], offsets[-1]), (0, len(file["tokens"])))
                    self.assertTrue((np.diff(offsets) > 0).all())
                parts.append(file["tokens"][...])
        return np.concatenate(parts)

    def bytes_of(self, folder):
        return self.tokens_of(folder).astype(np.uint8).tobytes()


class Tokens(TokenFolder):
    def test_bytes_of_texts_plain_and_compressed_at_any_number_of_ranks(self):
        texts = [story(300, seed=i).encode() for i in range(3)]
        self.put("a.txt", texts[0])
        self.put("b.txt.gz", texts[1])
        self.put("empty.txt", b"")
        self.put("c.bin", bytes(range(256)) * 20)
        sources = ("a.txt", "b.txt.gz", "empty.txt", "c.bin")
        self.succeed("shard", "text", *sources, "--out", "one")
        whole = texts[0] + texts[1] + bytes(range(256)) * 20
        self.assertEqual(self.tokens_of("one").dtype, np.uint8)
        self.assertEqual(self.bytes_of("one"), whole)
        with h5py.File(self.path("one/shard_00000.h5")) as file:
            self.assertEqual(
                list(file["documents"]), [0, len(texts[0]), len(texts[0] + texts[1]), len(whole)]
            )
            self.assertEqual((file.attrs["vocabulary"], file.attrs["tokenizer"]), (256, "bytes"))
        for ranks in (1, 2, 3):
            self.succeed(
                "shard",
                "text",
                *sources,
                "--out",
                "many",
                "--shards",
                "5",
                "--overwrite",
                ranks=ranks,
            )
            self.assertEqual(self.bytes_of("many"), whole)
            self.assertEqual(len(os.listdir(self.path("many"))), 5)  # no other files are left
        self.assertEqual(self.succeed("verify", "many").count("whole"), 5)

    def test_the_end_of_every_text_is_held_out(self):
        texts = [story(200, seed=1).encode(), story(600, seed=2).encode()]
        for name, text in zip("ab", texts):
            self.put(name, text)
        for what, share in (
            ("0.1", lambda n: 0.1 * n),
            ("1000", lambda n: 1000 * n / len(texts[0] + texts[1])),
        ):
            self.succeed(
                "shard",
                "text",
                "a",
                "b",
                "--out",
                "train",
                "--hold-out",
                what,
                "--hold-out-out",
                "held",
                "--overwrite",
            )
            with h5py.File(self.path("held/shard_00000.h5")) as file:
                ends = [int(file["documents"][1]), int(file["documents"][2] - file["documents"][1])]
            for text, end in zip(texts, ends):
                self.assertAlmostEqual(end, share(len(text)), delta=1)
            self.assertEqual(
                self.bytes_of("train"), b"".join(text[:-end] for text, end in zip(texts, ends))
            )
            self.assertEqual(
                self.bytes_of("held"), b"".join(text[-end:] for text, end in zip(texts, ends))
            )
        self.assertEqual(sum(ends), 1000)

    def test_a_tokenizer_is_trained_kept_and_used_again(self):
        self.put("a", story(3000, seed=1))
        self.put("b.gz", story(2000, seed=2))
        result = harness.run(
            "shard",
            "text",
            "a",
            "b.gz",
            "--train-tokenizer",
            "500",
            "--out",
            "train",
            "--hold-out",
            "0.05",
            "--hold-out-out",
            "held",
            cwd=self.folder,
        )
        if "without SentencePiece" in result.text:
            self.skipTest("this build is without SentencePiece")
        self.assertEqual(result.returncode, 0, result.text)
        tokens = self.tokens_of("train")
        self.assertEqual(tokens.dtype, np.uint16)
        self.assertLess(
            2 * (len(tokens) + len(self.tokens_of("held"))),
            len(story(3000, seed=1)) + len(story(2000, seed=2)),
        )
        for folder in ("train", "held"):
            described = json.loads(self.succeed("inspect", "--json", folder))
            self.assertEqual(
                (
                    described["holds"],
                    described["vocabulary"],
                    described["documents"],
                    described["tokenizer"],
                ),
                ("tokens", 500, 2, "sentencepiece"),
            )
            self.assertEqual(described["tokens"], len(self.tokens_of(folder)))
        models = [self.read(folder, "tokenizer.model") for folder in ("train", "held")]
        self.assertEqual(models[0], models[1])
        # The tokenizer of one dataset makes another one. Two ranks make the same one.
        for ranks in (1, 2):
            self.succeed(
                "shard",
                "text",
                "a",
                "b.gz",
                "--tokenizer",
                "train/tokenizer.model",
                "--out",
                "again%d" % ranks,
                ranks=ranks,
            )
            self.succeed(
                "shard",
                "text",
                "a",
                "b.gz",
                "--train-tokenizer",
                "500",
                "--out",
                "trained%d" % ranks,
                ranks=ranks,
            )
        again = self.tokens_of("again1")
        for folder in ("again2", "trained1", "trained2"):
            self.assertTrue(np.array_equal(self.tokens_of(folder), again), folder)
        self.assertEqual(self.read("trained2/tokenizer.model"), models[0])

    def test_files_of_other_forms_are_not_read_as_numbers(self):
        tokens = np.arange(500, dtype=np.uint16)
        np.savez(self.path("a.npz"), tokens)
        np.save(self.path("b.npy"), tokens)
        os.rename(self.path("b.npy"), self.path("b.bin"))
        self.put("c.bin.gz", tokens.tobytes())
        with zipfile.ZipFile(self.path("d.zip"), "w") as archive:
            archive.writestr("tokens.bin", tokens.tobytes())
        for protocol in (2, 3, 4, 5):
            self.put("e%d.pkl" % protocol, pickle.dumps(tokens, protocol))
            self.put("f%d.pkl" % protocol, pickle.dumps(list(range(500)), protocol))
        with tarfile.open(self.path("g.tar"), "w") as archive:
            archive.add(self.path("b.bin"), "b.bin")
        shutil.copy(self.path("a.npz"), self.path("h.npy"))
        for name, form in {
            "a.npz": "is an .npz archive of NumPy",
            "b.bin": "is a .npy file of NumPy under another name",
            "c.bin.gz": "is a gzip file",
            "d.zip": "is a ZIP archive",
            "g.tar": "is a tar archive",
            "h.npy": "is an .npz archive of NumPy",
            **{"%s%d.pkl" % (e, n): "is a pickle of Python" for e in "ef" for n in (2, 3, 4, 5)},
        }.items():
            self.put(name + ".pad", self.read(name) + b"\0" * (len(self.read(name)) % 2))
            for kind in ("uint8", "uint16"):
                source = name if kind == "uint8" else name + ".pad"
                if "pickle" in form and source.endswith(".pad"):
                    continue
                self.refuse(
                    *("shard", "tokens", source, "--vocabulary", "65536", "--out", "x"),
                    *(() if source.endswith(".npy") else ("--type", kind)),
                    saying=source + ": " + form,
                )
        self.assertFalse(os.path.exists(self.path("x")))

    def test_numbers_raw_and_of_numpy(self):
        rng = np.random.default_rng(1)
        tokens = rng.integers(0, 50257, 100_000)
        np.save(self.path("a.npy"), tokens[:40_000].astype(np.uint16))
        np.save(self.path("b.npy"), tokens[40_000:].astype(np.int64))
        tokens.astype("<u4").tofile(self.path("all.bin"))
        self.succeed(
            "shard",
            "tokens",
            "a.npy",
            "b.npy",
            "--vocabulary",
            "50257",
            "--out",
            "npy",
            "--shards",
            "3",
            ranks=2,
        )
        self.succeed(
            "shard",
            "tokens",
            "all.bin",
            "--type",
            "uint32",
            "--vocabulary",
            "50257",
            "--out",
            "raw",
            "--hold-out",
            "0.25",
            "--hold-out-out",
            "held",
        )
        self.succeed(
            "shard",
            "tokens",
            "all.bin",
            "--type",
            "uint32",
            "--vocabulary",
            "128256",
            "--out",
            "wide",
        )
        self.assertEqual(self.tokens_of("npy").dtype, np.uint16)
        self.assertEqual(self.tokens_of("wide").dtype, np.uint32)
        for made in (
            self.tokens_of("npy"),
            self.tokens_of("wide"),
            np.concatenate([self.tokens_of("raw"), self.tokens_of("held")]),
        ):
            self.assertTrue(np.array_equal(made, tokens))
        self.assertEqual(len(self.tokens_of("held")), 25_000)

    def test_the_header_of_llm_c_is_recognized(self):
        tokens = np.random.default_rng(4).integers(0, 50257, 5000)
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(tokens)
        self.put("train.bin", header.tobytes() + tokens.astype("<u2").tobytes())
        shard = ("shard", "tokens", "train.bin", "--vocabulary", "50257", "--overwrite")
        for more in ((), ("--type", "uint16")):
            self.succeed(*shard, *more, "--out", "made")
            self.assertTrue(np.array_equal(self.tokens_of("made"), tokens))
        self.refuse(*shard, "--type", "uint32", "--out", "made", saying="leave --type out")
        self.put("train.bin", header.tobytes() + tokens[:-1].astype("<u2").tobytes())
        self.refuse(*shard, "--type", "uint16", "--out", "made", saying="counts 5000 tokens")

    def test_mistakes_are_named(self):
        self.put("a", story(50))
        self.put("latin1", "caf\u00e9 ".encode("latin-1") * 100)
        self.put("nothing", b"")
        self.put("a.bin", array.array("H", [1, 2, 300]).tobytes())
        np.save(self.path("table.npy"), np.zeros((3, 4), np.uint16))
        np.save(self.path("real.npy"), np.zeros(3))
        os.mkdir(self.path("used"))
        self.put("used/mine.h5", b"not a shard")
        out = ("--out", "made")
        tokens = ("shard", "tokens")
        self.refuse("shard", "text", "missing", *out, saying="missing")
        self.refuse("shard", "text", "nothing", *out, saying="no tokens found")
        self.refuse("shard", "text", "a", "--out", "used", "--overwrite", saying="mine.h5")
        self.refuse("shard", "text", "a", *out, "--tokenizer", "a", saying="a: ")
        self.refuse(
            "shard",
            "text",
            "a",
            *out,
            "--tokenizer",
            "bytes",
            "--train-tokenizer",
            "300",
            saying="use only one of them",
        )
        self.refuse("shard", "text", "a", *out, "--hold-out", "0.5", saying="--hold-out-out")
        self.refuse(
            "shard",
            "text",
            "a",
            *out,
            "--hold-out",
            "10000000",
            "--hold-out-out",
            "held",
            saying="--hold-out 10000000",
        )
        self.refuse(
            "shard",
            "text",
            "a",
            *out,
            "--hold-out",
            "0.5",
            "--hold-out-out",
            "./made/",
            saying="is also the folder of --out",
        )
        self.refuse("shard", "text", "a", *out, "--shards", "100000", saying="there are only")
        self.refuse(
            "shard",
            "text",
            "a",
            *out,
            "--vocabulary",
            "200",
            saying="--vocabulary 200: the tokenizer has 256 tokens",
        )
        self.refuse("shard", "txt", "a", *out, saying='did you mean "text"?')
        self.refuse(*tokens, "a.bin", "--type", "uint16", *out, saying="--vocabulary")
        self.refuse(*tokens, "a.bin", "--vocabulary", "400", *out, saying="--type")
        self.refuse(
            *tokens,
            "a.bin",
            "--type",
            "uint16",
            "--vocabulary",
            "300",
            *out,
            saying="token 300 at position 2",
        )
        self.refuse(
            *tokens,
            "a.bin",
            "--type",
            "uint32",
            "--vocabulary",
            "300",
            *out,
            saying="6 bytes are not a whole number of tokens",
        )
        self.refuse(*tokens, "a.bin", "--type", "int7", "--vocabulary", "300", *out, saying="int7")
        self.refuse(*tokens, "table.npy", "--vocabulary", "300", *out, saying="[3, 4]")
        self.refuse(*tokens, "real.npy", "--vocabulary", "300", *out, saying="<f8")
        result = harness.run(
            "shard", "text", "latin1", *out, "--train-tokenizer", "300", cwd=self.folder
        )
        self.assertEqual(result.returncode, 2, result.text)
        self.assertEqual(
            os.listdir(self.path("made")) if os.path.exists(self.path("made")) else [], []
        )
        self.assertFalse(os.path.exists(self.path("held")) and os.listdir(self.path("held")))

    def test_shards_of_h5py_are_described_and_verified(self):
        os.mkdir(self.path("foreign"))
        tokens = np.random.default_rng(2).integers(0, 5000, 3000)
        for index, options in enumerate(({}, {"chunks": (700,), "compression": "gzip"})):
            with h5py.File(self.path("foreign/part%d.h5" % index), "w") as file:
                file.attrs["format"] = "trireme-shard"
                file.attrs["version"] = np.int32(1)
                file.attrs["kind"] = "tokens"
                file.create_dataset(
                    "tokens",
                    data=tokens[index * 1500 : (index + 1) * 1500].astype(np.uint16),
                    **options,
                )
                file["tokens" if index else "/"].attrs["vocabulary"] = np.uint16(5000)
        described = json.loads(self.succeed("inspect", "--json", "foreign"))
        self.assertEqual(
            (described["kind"], described["holds"], described["tokens"], described["vocabulary"]),
            ("dataset", "tokens", 3000, 5000),
        )
        self.assertEqual([shard["tokens"] for shard in described["shards"]], [1500, 1500])
        self.assertIn("vocabulary: 5000", self.succeed("inspect", "foreign/part1.h5"))
        self.assertIn("chunked", self.succeed("inspect", "foreign/part1.h5"))
        self.assertIn("3000", self.succeed("inspect", "foreign"))
        self.assertEqual(self.succeed("verify", "foreign").count("no checksums"), 2)

    def test_checksums_are_as_many_as_the_contract_says_and_a_changed_byte_is_found(self):
        self.put("a", story(2000))
        self.succeed("shard", "text", "a", "--out", "made")
        shard = self.path("made/shard_00000.h5")
        with h5py.File(shard) as file:
            block, offset, count = (
                int(file["checksums"].attrs["block"]),
                file["tokens"].id.get_offset(),
                len(file["tokens"]),
            )
            self.assertEqual(len(file["checksums"]), -(-count // block))
        with open(shard, "r+b") as file:
            file.seek(offset + count - 5)
            file.write(b"\x00")
        result = harness.run("verify", "made", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertRegex(
            result.text,
            re.escape("shard_00000.h5")
            + r": damaged: bytes \d+ to \d+ \(block \d+ of \d+\) do not match the seal",
        )

    def test_the_king_james_bible(self):
        if shutil.which("bible") is None:
            self.skipTest("the program bible (package bible-kjv) is not installed")
        text = subprocess.run(
            ["bible", "-f", "Gen1:1-Rev22:21"], stdout=subprocess.PIPE, check=True
        ).stdout
        self.assertGreater(len(text), 4_000_000)
        self.put("bible.txt", text)
        self.succeed(
            "shard",
            "text",
            "bible.txt",
            "--out",
            "bytes",
            "--hold-out",
            "0.1",
            "--hold-out-out",
            "held",
            "--shards",
            "2",
            ranks=2,
        )
        self.assertEqual(self.bytes_of("bytes") + self.bytes_of("held"), text)
        result = harness.run(
            "shard",
            "text",
            "bible.txt",
            "--train-tokenizer",
            "2000",
            "--out",
            "pieces",
            cwd=self.folder,
        )
        if "without SentencePiece" not in result.text:
            self.assertEqual(result.returncode, 0, result.text)
            self.assertLess(len(self.tokens_of("pieces")), len(text) / 3)


if __name__ == "__main__":
    harness.main(at_once=3)
