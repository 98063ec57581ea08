# SPDX-License-Identifier: Apache-2.0
"""Makers of malicious shards of encoded images, and of lists that are packed to a thousandth.

The tables map the name of a case to (function that makes a valid file malicious, words that the
error message must contain).
"""

import struct
import zlib

from hostile_files import OUTSIDE, attribute, link, put, replace

import h5py
import numpy as np


def png(pixels):
    """Returns the gray PNG file of an array [height, width]."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def part(name, data):
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(part(*each) for each in parts)


def encoded(path, **options):
    file = h5py.File(path, "w", **options)
    for name, value in dict(format="trireme-shard", version=1, kind="encoded-images").items():
        file.attrs[name] = value
    rng = np.random.default_rng(5)
    store_files(file, [png(rng.integers(0, 256, (12, 12), dtype=np.uint8)) for _ in range(20)])
    file["classes"] = np.array(["a", "b", "c", "d", "e"], h5py.string_dtype())
    return file


def store_files(file, files):
    """Makes these the encoded images of a shard."""
    ends = np.cumsum([0] + [len(each) for each in files])
    replace(file, "bytes", data=np.frombuffer(b"".join(files), np.uint8))
    replace(file, "offsets", data=ends.astype(np.uint64))
    replace(file, "labels", data=(np.arange(len(files)) % 5).astype(np.int32))


def offsets(change):
    """Replaces the offsets by change(offsets)."""

    def spoil(file):
        replace(file, "offsets", data=change(file["offsets"][:].astype(np.int64)))

    return spoil


def with_file(index, change):
    """Replaces one file by change(file), which has any length."""

    def spoil(file):
        whole, ends = file["bytes"][:].tobytes(), file["offsets"][:]
        files = [whole[a:b] for a, b in zip(ends, ends[1:])]
        files[index] = change(files[index])
        store_files(file, files)

    return spoil


ENCODED = {
    "files in another file": (
        link("bytes", h5py.ExternalLink(OUTSIDE + "other.h5", "/tokens")),
        "link into another file",
    ),
    "signed files": (put("bytes", data=np.zeros(100, np.int8)), "must be uint8"),
    "a square of files": (put("bytes", data=np.zeros((10, 10), np.uint8)), "one dimension"),
    "no offsets at all": (put("offsets", data=np.zeros(0, np.uint64)), "is empty"),
    "a square of offsets": (put("offsets", data=np.zeros((2, 2), np.uint64)), "dimensions"),
    "samples of two kinds": (
        lambda f: [
            put("images", data=np.zeros((20, 12, 12, 1), np.uint8))(f),
            attribute("kind", None)(f),
        ],
        "2 kinds",
    ),
}
ENCODED_INDEXED = {
    "offsets that begin late": (offsets(lambda o: o + (np.arange(21) == 0)), "goes from 1"),
    "offsets that end late": (offsets(lambda o: o + (np.arange(21) == 20)), "go from 0 to"),
    "offsets that go back": (
        offsets(lambda o: o[[0, 2, 1] + list(range(3, 21))]),
        "sample 1 is from byte",
    ),
    "a file of no bytes": (
        offsets(lambda o: o[[0, 1, 1] + list(range(3, 21))]),
        "sample 1 is from byte",
    ),
    "real offsets": (offsets(lambda o: o.astype(np.float64)), "whole numbers"),
    "fewer labels than files": (put("labels", data=np.zeros(19, np.int32)), "do not fit"),
    "labels below zero": (put("labels", data=np.full(20, -1, np.int32)), "label -1"),
}
ENCODED_VERIFIED = {
    "a file that is no image": (
        with_file(3, lambda file: b"GIF89a" * 9),
        "sample 3 is neither a JPEG nor a PNG file; make the shard again (shard --on-error skip",
    ),
    "pixels that do not unpack": (
        with_file(7, lambda file: file[:60] + bytes(20) + file[80:]),
        "sample 7 is a damaged PNG",
    ),
    "a file that is cut short": (with_file(19, lambda file: file[:-40]), "sample 19 is a damaged"),
    "an image of a trillion pixels": (
        with_file(0, lambda file: png_header(1 << 20, 1 << 20) + file[33:]),
        "sample 0 declares 1048576 x 1048576 pixels",
    ),
}


def png_header(height, width):
    """Returns the beginning of a PNG file that claims this size."""
    data = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    check = struct.pack(">I", zlib.crc32(data))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + data + check


# Lists that are packed to a thousandth. Each one would take gigabytes.


def packed(name, chunk_values, chunks, dtype, samples=None):
    """Writes a list of zeros in chunks of 64 KiB, each of them 64 MiB in memory."""

    def spoil(file):
        values = np.zeros(chunk_values, dtype)
        content = zlib.compress(values.tobytes(), 9)
        shape = (chunk_values * chunks,)
        dataset = replace(
            file, name, shape=shape, dtype=dtype, chunks=(chunk_values,), compression="gzip"
        )
        for chunk in range(chunks):
            dataset.id.write_direct_chunk((chunk * chunk_values,), content)
        if samples is not None:
            samples(file, shape[0])

    return spoil


def black_images(file, count):
    """Makes `count` images of one pixel."""
    rows = 1 << 24
    content = zlib.compress(bytes(rows), 9)
    dataset = replace(
        file,
        "images",
        shape=(count, 1, 1, 1),
        dtype=np.uint8,
        chunks=(rows, 1, 1, 1),
        compression="gzip",
    )
    for chunk in range(0, count, rows):
        dataset.id.write_direct_chunk((chunk, 0, 0, 0), content)


def zero_tokens(file, count):
    packed("tokens", 1 << 26, count >> 26, np.uint8)(file)


WIDE, NARROW = 1 << 23, 1 << 24  # values of 64 MiB
CLAIMS = "it is damaged or malicious"
PACKED = {
    "encoded": {
        "two billion offsets": (packed("offsets", WIDE, 30, np.uint64), ("/offsets", CLAIMS)),
        "twenty gigabytes of files": (packed("bytes", 1 << 26, 300, np.uint8), ("/bytes", CLAIMS)),
    },
    "images": {
        "half a billion labels": (
            packed("labels", NARROW, 32, np.int32, black_images),
            ("/labels", CLAIMS),
        )
    },
    "tokens": {
        "a billion documents": (
            packed("documents", WIDE, 32, np.uint64, lambda f, n: zero_tokens(f, 1 << 30)),
            ("/documents", CLAIMS),
        ),
        "a billion checksums": (
            lambda file: [
                packed("checksums", WIDE, 32, np.uint64, lambda f, n: zero_tokens(f, n))(file),
                file["checksums"].attrs.__setitem__("block", 1),
                file.pop("documents"),
            ],
            ("/checksums", CLAIMS),
        ),
    },
}
