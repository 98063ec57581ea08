# SPDX-License-Identifier: Apache-2.0
"""Makers of malicious HDF5 and safetensors files, and a measured run of the program.

The tables map the name of a case to (function that makes a valid file malicious, words that the
error message must contain).
"""

import json
import os
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor

import harness

try:
    import h5py
    import numpy as np
except ImportError:
    harness.skip("h5py is not installed")

MAX_BYTES = 512 << 20
OUTSIDE = "outside/"  # the folder of files that malicious files point to


# Makers. Each one gets an open, valid HDF5 file and makes it malicious.


def checkpoint(path, **options):
    file = h5py.File(path, "w", **options)
    for name, value in dict(
        format="trireme-checkpoint",
        version=1,
        complete=1,
        step=5,
        epoch=0,
        epoch_samples=320,
        samples=320,
        deck="",
    ).items():
        file.attrs[name] = value
    file["model/fc.weight"] = np.arange(160, dtype=np.float32).reshape(5, 32)
    file["model/fc.bias"] = np.zeros(5, np.float32)
    file["classes"] = np.array(["a", "b", "c", "d", "e"], h5py.string_dtype())
    file.create_group("state").attrs["seed"] = 7
    file.create_group("optimizer").attrs["updates"] = 5
    return file


def images(path, **options):
    file = h5py.File(path, "w", **options)
    for name, value in dict(format="trireme-shard", version=1, kind="images").items():
        file.attrs[name] = value
    rng = np.random.default_rng(3)
    file["images"] = rng.integers(0, 256, (100, 12, 12, 1), dtype=np.uint8)
    file["labels"] = (np.arange(100) % 5).astype(np.int32)
    file["classes"] = np.array(["a", "b", "c", "d", "e"], h5py.string_dtype())
    return file


def tokens(path, **options):
    file = h5py.File(path, "w", **options)
    for name, value in dict(
        format="trireme-shard", version=1, kind="tokens", vocabulary=256, tokenizer="bytes"
    ).items():
        file.attrs[name] = value
    file["tokens"] = (np.arange(2000) % 251).astype(np.uint8)
    file["documents"] = np.array([0, 700, 2000], np.uint64)
    return file


def replace(file, name, **options):
    if name in file:
        del file[name]
    return file.create_dataset(name, **options)


def put(name, **options):
    return lambda file: replace(file, name, **options)


def attribute(name, value, owner="/"):
    def spoil(file):
        if value is None:
            del file[owner].attrs[name]
        else:
            file[owner].attrs[name] = value

    return spoil


def link(name, target):
    def spoil(file):
        if name in file:
            del file[name]
        file[name] = target

    return spoil


def external_storage(name, shape, dtype):
    return put(
        name,
        shape=shape,
        dtype=dtype,
        external=[(os.path.abspath(OUTSIDE + "raw.bin"), 0, h5py.h5f.UNLIMITED)],
    )


def virtual(name, shape, dtype):
    def spoil(file):
        if name in file:
            del file[name]
        layout = h5py.VirtualLayout(shape=shape, dtype=dtype)
        layout[...] = h5py.VirtualSource(os.path.abspath(OUTSIDE + "other.h5"), name, shape=shape)
        file.create_virtual_dataset(name, layout)

    return spoil


def chunks_of(name, shape, dtype, chunk, raw=b"x\x9c\x03\x00\x00\x00\x00\x01"):
    """Claims `shape`, but stores only one chunk of a few bytes."""

    def spoil(file):
        dataset = replace(file, name, shape=shape, dtype=dtype, chunks=chunk, compression="gzip")
        dataset.id.write_direct_chunk((0,) * len(shape), raw)

    return spoil


def loop(file):
    file["model/self"] = file["model"]


def deep(file):
    file.create_group("model" + "/g" * 40).create_dataset("x", data=np.zeros(3, np.float32))


def empty(name, dtype):
    def spoil(file):
        if name in file:
            del file[name]
        file.create_dataset(name, data=h5py.Empty(dtype))

    return spoil


def named_type(file):
    file["model/type"] = np.dtype("f4")


def dataset_for_group(file):
    del file["model"]
    file["model"] = np.zeros(3, np.float32)


def checksums(values, block=50):
    def spoil(file):
        dataset = replace(file, "checksums", data=values)
        if block is not None:
            dataset.attrs["block"] = block

    return spoil


COMPOUND = np.zeros(3, [("a", "f4"), ("b", "i8")])

CHECKPOINTS = {
    "a tensor that is a link into another file": (
        link("model/fc.weight", h5py.ExternalLink(OUTSIDE + "other.h5", "/model/fc.weight")),
        "link into another file",
    ),
    "a group that is a link into another file": (
        link("model", h5py.ExternalLink(OUTSIDE + "other.h5", "/model")),
        "link into another file",
    ),
    "a soft link to a link into another file": (
        lambda f: [
            link("hidden", h5py.ExternalLink(OUTSIDE + "other.h5", "/"))(f),
            link("model/fc.bias", h5py.SoftLink("/hidden/model/fc.bias"))(f),
        ],
        "link into another file",
    ),
    "a soft link to itself": (link("model/fc.bias", h5py.SoftLink("/model/fc.bias")), "circle"),
    "soft links in a circle": (
        lambda f: [
            link("model/a", h5py.SoftLink("/model/b"))(f),
            link("model/b", h5py.SoftLink("a"))(f),
        ],
        "circle",
    ),
    "a soft link to nothing": (link("model/fc.bias", h5py.SoftLink("/nothing")), "model/fc.bias"),
    "a group within itself": (loop, "nested deeper"),
    "groups forty deep": (deep, "nested deeper"),
    "external storage": (external_storage("model/fc.weight", (5, 32), "f4"), "external storage"),
    "a virtual dataset": (virtual("model/fc.weight", (5, 32), "f4"), "virtual dataset"),
    "a petabyte that was never written": (
        put("model/fc.weight", shape=(1 << 40, 250), dtype="f4"),
        "model/fc.weight",
    ),
    "a petabyte of chunks that were never written": (
        put("model/fc.weight", shape=(1 << 40, 250), dtype="f4", chunks=(64, 250)),
        "model/fc.weight",
    ),
    "a petabyte in one small chunk": (
        chunks_of("model/fc.weight", (1 << 40, 250), "f4", (64, 250)),
        "claims",
    ),
    "extents whose product overflows": (
        put("model/fc.weight", shape=(1 << 31, 1 << 31, 64), dtype="f4", chunks=(1, 1, 64)),
        "exceed 2^63 - 1 bytes",
    ),
    "nine dimensions": (
        put("model/fc.weight", data=np.zeros((1,) * 9, np.float32)),
        "9 dimensions",
    ),
    "records for numbers": (put("model/fc.weight", data=COMPOUND), "not real numbers"),
    "whole numbers for real ones": (
        put("model/fc.weight", data=np.zeros(3, np.int32)),
        "not real numbers",
    ),
    "strings for numbers": (
        put("model/fc.weight", data=np.array(["x"], h5py.string_dtype())),
        "not real numbers",
    ),
    "opaque bytes for numbers": (
        put("model/fc.weight", data=np.zeros(3, "V16")),
        "not real numbers",
    ),
    "references for numbers": (
        put("model/fc.weight", shape=(3,), dtype=h5py.ref_dtype),
        "model/fc.weight",
    ),
    "rows of any length for numbers": (
        put("model/fc.weight", shape=(3,), dtype=h5py.vlen_dtype(np.float32)),
        "model/fc.weight",
    ),
    "no extents": (empty("model/fc.weight", "f4"), "is empty"),
    "a type for a tensor": (named_type, "is not a dataset"),
    "a tensor for a group": (dataset_for_group, "no such group"),
    "a format that is a number": (attribute("format", 3), "attribute format"),
    "a format of two strings": (
        attribute("format", np.array(["a", "b"], h5py.string_dtype())),
        "attribute format",
    ),
    "a format of sixty thousand letters": (attribute("format", "x" * 60000), "format is"),
    "a format with line feeds and escapes": (
        attribute("format", "a\nb\x1b[2Jc"),
        "a\\x0Ab\\x1B[2Jc",
    ),
    "a format that is not UTF-8": (attribute("format", np.bytes_(b"a\xff\xc3(")), "a\\xFF\\xC3("),
    "a format without a value": (attribute("format", h5py.Empty("S10")), "attribute format"),
    "a version of the future": (attribute("version", 2), "version 2"),
    "a version that is not a number": (attribute("version", float("nan")), "attribute version"),
    "no mark of completeness": (attribute("complete", None), "complete"),
    "a step below zero": (attribute("step", -3), "attribute step"),
    "a step beyond all counting": (attribute("step", np.uint64(2**64 - 1)), "attribute step"),
    "a step that is text": (attribute("step", "five"), "attribute step"),
    "updates below zero": (attribute("updates", -1, "optimizer"), "attribute updates"),
    "an epoch of three values": (attribute("epoch", np.arange(3)), "attribute epoch"),
    "a state of records": (attribute("seed", COMPOUND[0], "state"), "attribute seed"),
    "a deck of a million strings": (attribute("deck", np.zeros(6000, "S8")), "attribute deck"),
    "a digest that is text": (attribute("digest", "x", "model/fc.weight"), "attribute digest"),
    "classes that are numbers": (put("classes", data=np.arange(5)), "list of strings"),
    "classes in a square": (put("classes", data=np.full((2, 2), b"x")), "list of strings"),
    "a trillion classes": (chunks_of("classes", (1 << 40,), "S8", (64,)), "/classes"),
    "a name with line feeds": (
        lambda f: f.create_dataset("model/a\nb\x1b[2J", data=np.zeros(3, np.int32)),
        "a\\x0Ab",
    ),
}
VERIFIED = {
    "a digest of other values": (
        attribute("digest", np.uint64(5), "model/fc.weight"),
        "do not match its digest",
    ),
    "a chunk that does not unpack": (
        chunks_of("model/fc.weight", (5, 32), "f4", (5, 32), b"\xff" * 40),
        "model/fc.weight",
    ),
    "a chunk that unpacks to nothing": (
        chunks_of("model/fc.weight", (5, 32), "f4", (5, 32)),
        "model/fc.weight",
    ),
}

IMAGES = {
    "images in another file": (
        link("images", h5py.ExternalLink(OUTSIDE + "other.h5", "/images")),
        "link into another file",
    ),
    "images in external storage": (
        external_storage("images", (100, 12, 12, 1), "u1"),
        "external storage",
    ),
    "virtual images": (virtual("images", (100, 12, 12, 1), "u1"), "virtual dataset"),
    "images a petabyte long": (
        chunks_of("images", (1 << 40, 12, 12, 1), "u1", (1, 12, 12, 1)),
        "claims",
    ),
    "images a million wide": (
        put("images", shape=(1, (1 << 20) + 1, 1, 1), dtype="u1", chunks=(1, 64, 1, 1)),
        "/images",
    ),
    "three dimensions": (put("images", data=np.zeros((100, 12, 12), np.uint8)), "3 dimensions"),
    "pixels of 64 bits": (
        put("images", data=np.zeros((100, 12, 12, 1), np.float64)),
        "real numbers of 64 bits",
    ),
    "signed pixels": (put("images", data=np.zeros((100, 12, 12, 1), np.int16)), "signed integers"),
    "an unknown kind": (attribute("kind", "sounds"), "unknown"),
    "a kind that is a number": (attribute("kind", 3), "attribute kind"),
    "a shard of the future": (attribute("version", 2), "version 2"),
    "classes that are records": (put("classes", data=COMPOUND), "/classes"),
}
IMAGES_VERIFIED = {
    "labels in another file": (
        link("labels", h5py.ExternalLink(OUTSIDE + "other.h5", "/labels")),
        "link into another file",
    ),
    "labels below zero": (put("labels", data=np.full(100, -1, np.int32)), "label -1"),
    "labels beyond the classes": (put("labels", data=np.full(100, 5, np.int64)), "label 5"),
    "labels beyond 32 bits": (put("labels", data=np.full(100, 1 << 40, np.int64)), "not a class"),
    "real labels": (put("labels", data=np.zeros(100, np.float32)), "whole numbers"),
    "fewer labels than images": (put("labels", data=np.zeros(99, np.int32)), "do not fit"),
    "a trillion labels": (chunks_of("labels", (1 << 40,), "u1", (64,)), "/labels"),
}
IMAGES_SUMMED = {
    "pixels that are not finite": (
        put("images", data=np.full((100, 12, 12, 1), np.nan, np.float16)),
        "sample 0 has a value that is infinite or NaN",
    ),
    "too few checksums": (checksums(np.zeros(1, np.uint64)), "contains 1 checksums"),
    "checksums of other samples": (checksums(np.zeros(2, np.uint64)), "block 0"),
    "real checksums": (checksums(np.zeros(2)), "checksums are uint64"),
    "blocks of nothing": (checksums(np.zeros(2, np.uint64), 0), "attribute block"),
    "blocks without a size": (checksums(np.zeros(2, np.uint64), None), "attribute block"),
    "chunks that do not unpack": (
        chunks_of("images", (100, 12, 12, 1), "u1", (100, 12, 12, 1), b"\xff" * 40),
        "/images",
    ),
}
TOKENS = {
    "tokens in another file": (
        link("tokens", h5py.ExternalLink(OUTSIDE + "other.h5", "/tokens")),
        "link into another file",
    ),
    "signed tokens": (put("tokens", data=np.zeros(2000, np.int32)), "/tokens"),
    "a square of tokens": (put("tokens", data=np.zeros((40, 50), np.uint8)), "2 dimensions"),
    "a vocabulary of nothing": (attribute("vocabulary", 0), "attribute vocabulary"),
    "a vocabulary below zero": (attribute("vocabulary", -5), "attribute vocabulary"),
    "a vocabulary beyond 32 bits": (attribute("vocabulary", 1 << 40), "attribute vocabulary"),
    "a vocabulary that is text": (attribute("vocabulary", "many"), "attribute vocabulary"),
    "a tokenizer that is a number": (attribute("tokenizer", 3), "attribute tokenizer"),
    "documents that go back": (
        put("documents", data=np.array([0, 1500, 700, 2000], np.uint64)),
        "offset 2",
    ),
    "documents beyond the tokens": (
        put("documents", data=np.array([0, 700, 2001], np.uint64)),
        "offset 2",
    ),
    "documents that end early": (
        put("documents", data=np.array([0, 700], np.uint64)),
        "last offset is 700",
    ),
    "documents that begin late": (
        put("documents", data=np.array([3, 2000], np.uint64)),
        "first offset is 3",
    ),
    "documents below zero": (
        put("documents", data=np.array([-5, 2000], np.int64)),
        "first offset is -5",
    ),
    "no documents at all": (put("documents", data=np.zeros(0, np.uint64)), "empty"),
    "real documents": (put("documents", data=np.array([0.0, 2000.0])), "whole numbers"),
    "a square of documents": (put("documents", data=np.zeros((2, 2), np.uint64)), "dimensions"),
}
TOKENS_VERIFIED = {
    "tokens beyond the vocabulary": (attribute("vocabulary", 100), "token 100 at position 100")
}


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "an empty file": (b"", "0 bytes"),
    "a header beyond the file": (safetensors(b"{}", length=1 << 20), "header claims"),
    "a header of 2^63 bytes": (safetensors(b"{}", length=1 << 63), "header claims"),
    "a header that is no JSON": (safetensors(b"{]"), "not JSON"),
    "a header that is a list": (safetensors([]), "not a JSON object"),
    "a header nested without end": (safetensors(b'{"a":' * 50000), "nested"),
    "a header of forty million numbers": (
        safetensors(b'{"a":{"shape":[' + b"0," * 40000000 + b"0]}}"),
        "values",
    ),
    "a name twice": (
        safetensors(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],'
            b'"data_offsets":[0,1]}}',
            b"x",
        ),
        "twice",
    ),
    "tensors that overlap": (
        safetensors({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)),
        "overlap",
    ),
    "a hole between tensors": (
        safetensors({"a": tensor([1], 0, 4), "b": tensor([1], 8, 12)}, bytes(12)),
        "hole",
    ),
    "a tensor beyond the file": (
        safetensors({"a": tensor([1 << 20], 0, 4 << 20)}, bytes(12)),
        "which has 12",
    ),
    "an end before its beginning": (safetensors({"a": tensor([1], 8, 4)}, bytes(12)), "a:"),
    "offsets below zero": (safetensors({"a": tensor([1], -4, 0)}, bytes(12)), "data_offsets"),
    "a shape whose product overflows": (
        safetensors({"a": tensor([1 << 40, 1 << 40], 0, 12)}, bytes(12)),
        "more elements",
    ),
    "a shape that does not fit its bytes": (
        safetensors({"a": tensor([4], 0, 12)}, bytes(12)),
        "a:",
    ),
    "a type that nobody knows": (
        safetensors({"a": tensor([3], 0, 12, "F7\x1b[2J\n")}, bytes(12)),
        "unknown dtype F7\\x1B[2J\\x0A",
    ),
    "a tensor that is a number": (safetensors({"a": 3}), "a:"),
}


def bytes_of(maker):
    maker("whole.h5").close()
    with open("whole.h5", "rb") as file:
        return file.read()


PLAIN = {
    "nothing": lambda: b"",
    "text": lambda: b"not a checkpoint\n" * 200,
    "zeros": lambda: bytes(100000),
    "a file cut in the middle": lambda: bytes_of(checkpoint)[:3000],
    "a seal before nothing": lambda: b"TRIREME1" + struct.pack("<Q", 2**63) + bytes(4080),
}
PLAIN_VERIFIED = {
    "a seal before a whole file": lambda: b"TRIREME1"
    + struct.pack("<Q", len(bytes_of(checkpoint)))
    + bytes(496)
    + bytes_of(checkpoint),
    "a user block of rubbish": lambda: bytes(range(256)) * 16 + bytes_of(checkpoint),
}


def run_measured(*arguments, cwd):
    """Runs the program and its children.

    Returns exit code, output, peak memory in bytes and processor seconds.
    """
    process = subprocess.Popen(
        harness.command(*arguments),
        cwd=cwd,
        env=harness.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with ThreadPoolExecutor(1) as reader:
        errors = reader.submit(process.stderr.read)
        out = process.stdout.read().decode(errors="replace")
        text = errors.result().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    return process.returncode, out, text, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


class HostileCase(harness.Case):
    """Runs in its own folder, beside the files that malicious files point to."""

    samples = 128

    def setUp(self):
        super().setUp()
        self.write_deck(harness.GPT_DECK, "gpt.toml")
        self.before = os.getcwd()
        os.chdir(self.folder)
        os.mkdir(OUTSIDE)
        with checkpoint(OUTSIDE + "other.h5") as file:
            file["images"] = np.zeros((100, 12, 12, 1), np.uint8)
            file["labels"] = np.zeros(100, np.int32)
            file["tokens"] = np.zeros(2000, np.uint8)
        with open(OUTSIDE + "raw.bin", "wb") as file:
            file.write(bytes(20000))

    def tearDown(self):
        os.chdir(self.before)
        super().tearDown()
