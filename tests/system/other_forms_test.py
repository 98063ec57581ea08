# SPDX-License-Identifier: Apache-2.0
"""Tests sources of other forms than the wanted one, and packed ones that are far larger than they
seem: one line with the source and what to do, exit 2, and nothing left behind."""

import gzip
import io
import json
import lzma
import os
import random
import resource
import string
import struct
import subprocess
import tarfile
import zipfile
import zlib

import harness
import measured

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")

import tokens_test

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 12345\n" % 7


def png():
    """Returns a PNG file of one pixel."""
    parts = b""
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(4))),
        (b"IEND", b""),
    ):
        crc = struct.pack(">I", zlib.crc32(kind + data))
        parts += struct.pack(">I", len(data)) + kind + data + crc
    return b"\x89PNG\r\n\x1a\n" + parts


PNG = png()


def archive(files):
    """Returns a tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


class OtherForms(tokens_test.TokenFolder):
    out = ("--out", "out")

    def store(self, name, data):
        """Writes bytes as they are."""
        with open(self.path(name), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)

    def refuse_source(self, *arguments, saying):
        """The message is one line, and no folder is made."""
        result = harness.run(*arguments, *self.out, cwd=self.folder)
        self.assertEqual(result.returncode, 2, "%s: %s" % (arguments, result.text))
        self.assertEqual(result.text.count("\n"), 1, result.text)
        for words in (saying,) if isinstance(saying, str) else saying:
            self.assertIn(words, result.text)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_well_known_forms_are_named(self):
        self.store("pointer", POINTER)
        with zipfile.ZipFile(self.path("a.zip"), "w") as file:
            file.writestr("1.txt", "text")
        self.store("table.parquet", b"PAR1" + bytes(90) + b"PAR1")
        record = b"\5\0\0\0\0\0\0\0\xea\xb2\x04\x3e" + b"12345" + bytes(4)
        self.store("data.tfrecord", record)
        os.mkdir(self.path("base.lmdb"))
        self.store("base.lmdb/data.mdb", bytes(16) + b"\xde\xc0\xef\xbe" + bytes(4000))
        self.store("a.tar", archive({"1.txt": b"text"}))
        names = {
            "pointer": "a pointer of git-lfs",
            "a.zip": "a ZIP archive",
            "table.parquet": "a Parquet file",
            "data.tfrecord": "a TFRecord file",
            "base.lmdb": "an LMDB database",
            "s3://bucket/train": "an address, not a path",
        }
        formats = {
            "text": (),
            "jsonl": (),
            "tokens": ("--vocabulary", "256", "--type", "uint8"),
            "tar": (),
            "cifar": (),
            "folder": (),
        }
        for name, form in names.items():
            for word, options in formats.items():
                self.refuse_source(
                    *("shard", word, name, *options),
                    saying="%s: is %s, which `shard %s` does not read; " % (name, form, word),
                )
        self.refuse_source("shard", "idx", "pointer", "a.zip", saying="pointer: is a pointer")
        self.refuse_source("shard", "text", "a.tar", saying="a.tar: is a tar archive, which")

    def test_files_of_options_in_another_form_are_refused(self):
        os.makedirs(self.path("photos/cat"))
        self.store("photos/cat/1.png", PNG)
        self.store("pointer", POINTER)
        self.store("packed", gzip.compress(b"1.png cat\n"))
        self.store("list.json", '["cat"]')
        self.store("names.json", '{"0": "cat",\n"1": "dog"}')
        self.store("a.txt", "text")
        pointer, address = "is a pointer of git-lfs", "is an address, not a path, which is not read"
        for word, source, option, name, saying in (
            ("folder", "photos", "--classes", "pointer", pointer),
            ("folder", "photos", "--classes", "s3://bucket/names", address),
            ("folder", "photos", "--classes", "list.json", "begins as JSON does"),
            ("folder", "photos", "--classes", "names.json", "begins as JSON does"),
            ("folder", "photos", "--labels", "pointer", pointer),
            ("folder", "photos", "--labels", "packed", "is a gzip file"),
            ("folder", "photos", "--labels", "s3://bucket/labels", address),
            ("text", "a.txt", "--tokenizer", "s3://bucket/t.model", address),
        ):
            self.refuse_source(
                *("shard", word, source, option, name), saying="%s %s: %s" % (option, name, saying)
            )

    def test_words_of_other_forms_have_advice(self):
        for word, advice in {
            "webdataset": "use `shard tar`",
            "imagenet": "ILSVRC2012_img_train.tar",
            "lmdb": "as files in a tar archive",
            "tfrecord": "as JSON Lines",
            "parquet": "with h5py",
        }.items():
            saying = ("shard %s: is no format of `shard`" % word, advice)
            self.refuse_source("shard", word, "a", saying=saying)

    def test_other_tokenizers_are_named(self):
        self.put("a.txt", tokens_test.story(20))
        self.put("tokenizer.json", json.dumps({"version": "1.0", "truncation": None}))
        self.put("o200k.tiktoken", "IQ== 0\nIg== 1\n")
        self.store("llama.model", POINTER)
        shard = ("shard", "text", "a.txt", "--tokenizer")
        if "without SentencePiece" in harness.run(*shard, "a.txt", cwd=self.folder).text:
            self.skipTest("this build is without SentencePiece")
        for name, form in {
            "tokenizer.json": "it is a tokenizer.json of Hugging Face; encode the texts with",
            "o200k.tiktoken": "it is a vocabulary of tiktoken; encode the texts with",
            "llama.model": "it is a pointer of git-lfs; `git lfs pull`",
        }.items():
            self.refuse_source(*shard, name, saying=(name + ": is not a SentencePiece model", form))

    def test_files_that_stand_for_data_are_named(self):
        os.mkdir(self.path("data"))
        self.store("data/a.h5", POINTER)
        for command in (("inspect", "data"), ("inspect", "data/a.h5")):
            self.refuse(*command, saying="it is a pointer of git-lfs; `git lfs pull`")
        with open(self.path("deck.toml"), "w") as file:
            file.write(harness.GPT_DECK)
        for folder, form in (("data", "a pointer of git-lfs"), ("s3://b/train", "an address")):
            self.refuse("check", "deck.toml", "--set", "data.train=" + folder, saying=form)
        os.makedirs(self.path("photos/cat"))
        self.store("photos/cat/1.png", PNG)
        self.store("photos/cat/2.png", POINTER)
        self.refuse_source(
            *("shard", "folder", "photos", "--encode", "keep"),
            saying=("cat/2.png: is neither a JPEG nor a PNG file", "it is a pointer of git-lfs"),
        )
        for content, form in (
            (POINTER, "a pointer of git-lfs"),
            (json.dumps({"weight_map": {"wte.weight": "model-1.safetensors"}}), "the JSON index"),
            (b"PK\3\4" + bytes(22) + b"\x10\0\0\0archive/data.pkl", "a file of PyTorch"),
        ):
            self.store("model.safetensors", content)
            self.refuse(
                *("import", "model.safetensors", "deck.toml", "--out", "c.h5"),
                saying="or no safetensors file: it is " + form,
            )

    def test_packed_twice(self):
        image = archive({"cat/1.png": PNG, "dog/2.png": PNG})
        labels = struct.pack(">II", 0x801, 2) + b"\0\1"
        pixels = struct.pack(">IIII", 0x803, 2, 1, 1) + b"\5\6"
        self.store("a.txt.gz", gzip.compress(gzip.compress(b"text " * 999)))
        self.store("b.jsonl.gz", gzip.compress(lzma.compress(b'{"text": "a"}')))
        self.store("c.tar.gz", gzip.compress(gzip.compress(image)))
        self.store("d.tar.gz", gzip.compress(lzma.compress(image)))
        self.store("e.idx.gz", gzip.compress(gzip.compress(pixels)))
        self.store("labels", labels)
        for source, form in {
            ("text", "a.txt.gz"): "a gzip file",
            ("jsonl", "b.jsonl.gz"): "an xz file",
            ("tar", "c.tar.gz"): "a gzip file",
            ("tar", "d.tar.gz"): "an xz file",
            ("idx", "e.idx.gz", "labels"): "a gzip file",
        }.items():
            saying = "%s: is packed twice: the gzip file holds %s" % (source[1], form)
            self.refuse_source("shard", *source, saying=saying)
        self.store("f.txt.gz", gzip.compress(image))
        self.refuse_source("shard", "text", "f.txt.gz", saying="holds a tar archive, not a text")

    def test_what_unpacks_to_gigabytes_is_refused(self):
        zeros = gzip.compress(bytes(1 << 20)) * 1100
        head = tarfile.TarInfo("a/x.jpg")
        head.size = 1100 << 20
        self.store("a.txt.gz", zeros)
        self.store("b.tar.gz", gzip.compress(head.tobuf()) + zeros)
        self.store("c.tar.xz", lzma.compress(head.tobuf()) + lzma.compress(bytes(50 << 20)) * 22)
        pixels = struct.pack(">IIII", 0x803, 1100, 1024, 1024)
        self.store("d.idx.gz", gzip.compress(pixels) + zeros)
        self.store("labels", struct.pack(">II", 0x801, 1100) + bytes(1100))
        for source in (
            ("text", "a.txt.gz"),
            ("tar", "b.tar.gz"),
            ("tar", "c.tar.xz"),
            ("idx", "d.idx.gz", "labels"),
        ):
            saying = (source[1] + ": ", "bytes unpack to 1", "--max-unpacked SIZE")
            self.refuse_source("shard", *source, saying=saying)
        # With the option the content is what counts.
        head.name = "a/x.bin"
        self.store("e.tar.gz", gzip.compress(head.tobuf()) + zeros)
        self.refuse_source(
            *("shard", "tar", "e.tar.gz", "--max-unpacked", "2GB"), saying="no JPEG or PNG file"
        )

    def test_a_sparse_index_of_megatron_takes_no_memory(self):
        sequences = 40_000_000
        self.store("s.bin", b"")
        self.store("s.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, sequences, sequences))
        os.truncate(self.path("s.idx"), 34 + sequences * (4 + 8 + 8))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        saying = "s.idx: lists 40000000 sequences"
        self.refuse_source("shard", "tokens", "s.idx", "--vocabulary", 9, saying=saying)
        # A few empty documents are no damage.
        self.store("e.bin", b"")
        self.store("e.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 90, 0) + bytes(90 * 12))
        self.refuse_source("shard", "tokens", "e.idx", "--vocabulary", 9, saying="no tokens found")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(peak, max(before, 200 << 10))  # KiB; the lists have 800 MB

    def test_a_trainer_that_ends_its_process_is_a_message(self):
        self.store("nul.txt", bytes(100_000))
        self.store("lines.txt", b"\0\n" * 5000)
        self.put("nul.jsonl", json.dumps({"text": "\0" * 5000}) + "\n")
        train = ("--train-tokenizer", "300")
        for word, name in (("text", "nul.txt"), ("text", "lines.txt"), ("jsonl", "nul.jsonl")):
            result = harness.run("shard", word, name, *train, *self.out, cwd=self.folder)
            if "without SentencePiece" in result.text:
                self.skipTest("this build is without SentencePiece")
            self.refuse_source("shard", word, name, *train, saying=name + ": ")
        self.refuse_source(
            *("shard", "text", "nul.txt", "lines.txt", *train),
            saying="nul.txt and the other sources: ",
        )
        self.store("empty.txt", b"")
        self.refuse_source("shard", "text", "empty.txt", *train, saying="empty.txt: no text found")

    def test_the_cost_of_training_on_text_without_blanks_is_limited(self):
        rng = random.Random(1)
        line = "".join(rng.choices(string.ascii_lowercase, k=1000))
        texts = {
            "letter.txt": ("a" * 1000 + "\n") * 100_000,
            "pair.txt": ("ab" * 500 + "\n") * 100_000,
            "one_line.txt": "a" * 100_000_000,
            "same.txt": (line + "\n") * 100_000,
        }
        for name, text in texts.items():
            self.put(name, text)
            train = ("shard", "text", name, "--train-tokenizer", "1000", *self.out)
            result = measured.run(*train, cwd=self.folder)
            if "without SentencePiece" in result.text:
                self.skipTest("this build is without SentencePiece")
            self.assertIn(result.returncode, (0, 2), result.text)
            self.assertEqual(result.text.count("\n"), 1, result.text)
            self.assertLess(result.seconds, 4, name)
            self.assertLess(result.peak, 512 << 20, name)
            os.remove(self.path(name))

    def test_a_trainer_that_needs_too_much_is_ended(self):
        rng = random.Random(1)
        self.put("letters.txt", "".join(rng.choices(string.ascii_lowercase, k=6_000_000)))
        train = ("shard", "text", "letters.txt", "--train-tokenizer", "1000", *self.out)
        for limit, saying in (
            ("-St 4", "it took more than 4 s of processor time"),
            ("-Sd 200000", "it needed more memory than 195.3 MiB"),
        ):
            result = subprocess.run(
                ["sh", "-c", 'ulimit %s; exec "$@"' % limit, "sh", *harness.command(*train)],
                cwd=self.folder,
                env=harness.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if "without SentencePiece" in result.stdout:
                self.skipTest("this build is without SentencePiece")
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertEqual(result.stdout.count("\n"), 1, result.stdout)
            self.assertIn("letters.txt: SentencePiece cannot train", result.stdout)
            self.assertIn(saying, result.stdout)
            self.assertFalse(os.path.exists(self.path(self.out[1])))

    def test_sources_without_tokens_are_named(self):
        self.store("empty.txt", b"")
        self.store("empty.txt.gz", gzip.compress(b""))
        self.put("empty.jsonl", '{"text": ""}\n')
        for word, name in (
            ("text", "empty.txt"),
            ("text", "empty.txt.gz"),
            ("jsonl", "empty.jsonl"),
        ):
            self.refuse_source("shard", word, name, saying=name + ": no tokens found")

    def test_what_a_file_says_is_printed_in_one_line(self):
        data = np.zeros(3, np.uint8).tobytes()
        order = "'fortran_order': False, 'shape'"
        for header in ("{'descr': '<f\n4', %s: (3,)}", "{'descr': '|u1', %s: (3\n,4)}"):
            text = (header % order).encode().ljust(117) + b"\n"
            self.store("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data)
            self.refuse_source(
                *("shard", "tokens", "a.npy", "--vocabulary", "9"), saying=("a.npy: ", "\\x0A")
            )
        os.mkdir(self.path("photos"))
        self.store("photos/1.png", PNG)
        for label in (b"caf\xe9", b"a\1b"):
            self.store("names.tsv", b"1.png\t" + label + b"\n")
            self.refuse_source(
                *("shard", "folder", "photos", "--labels", "names.tsv"), saying="names.tsv: "
            )

    def test_parts_of_newer_versions_of_hdf5_are_named(self):
        os.mkdir(self.path("data"))
        with h5py.File(self.path("data/a.h5"), "w") as file:
            file.attrs["format"] = "trireme-shard"
            file["tokens"] = np.zeros(9, np.uint8)
        content = bytearray(self.read("data/a.h5"))
        # The header of a message: its type (layout: 8, dataspace: 1), its length, flags.
        for kind, length in ((8, 24), (1, 24)):
            changed = bytearray(content)
            at = changed.index(bytes([kind, 0, length, 0])) + 8
            changed[at] = 9
            self.store("data/a.h5", bytes(changed))
            result = harness.run("inspect", "data", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertRegex(
                result.text, r"^trireme: error: data/a\.h5: .*version .*(newer HDF5|damaged).*\n$"
            )
            self.assertNotIn("; unable to", result.text)


if __name__ == "__main__":
    harness.main(at_once=2)
