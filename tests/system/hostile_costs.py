# SPDX-License-Identifier: Apache-2.0
"""Makers of HDF5 files below 16 MiB that cost HDF5 much time.

SLOW maps the kind of a file and the name of a case to a function that writes the file at a path.
Each file is valid unless its name says that it has no end.
"""

import itertools
import re
import struct
import zlib

from hostile_files import attribute, checkpoint, images, replace
from hostile_storage import MANY_CHUNKS, many_images, many_tensor_chunks, spoilt

import h5py
import numpy as np


def attributes(count):
    def spoil(file):
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        for index in range(count):
            h5py.h5a.create(file.id, b"%x" % index, h5py.h5t.STD_I8LE, space)

    return spoil


def links(count, add):
    """Fills a group with links; `add` adds one."""

    def spoil(file):
        group = file.create_group("notes")
        for index in range(count):
            add(group.id.links, b"%x" % index, file.id)

    return spoil


def hard_link(links_of, name, root):
    links_of.create_hard(name, root, b"model/fc.weight")


def soft_link(links_of, name, root):
    links_of.create_soft(name, b"/model/fc.weight")


def groups(count):
    def spoil(file):
        for index in range(count):
            h5py.h5g.create(file["model"].id, b"%x" % index)

    return spoil


def datasets(count):
    def spoil(file):
        space, group = h5py.h5s.create_simple((1,)), file["model"].id
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        for index in range(count):
            h5py.h5d.create(group, b"%x" % index, h5py.h5t.IEEE_F32LE, space, plan)

    return spoil


def multiplying_paths(depth, width):
    """Groups of which each has several links to the next one: width ** depth paths."""

    def spoil(file):
        group = file.create_group("notes")
        for _ in range(depth):
            following = group.create_group("0")
            for index in range(1, width):
                group[str(index)] = following
            group = following

    return spoil


def long_soft_links(count, letters):
    """Soft links whose targets pass through one group many times."""

    def spoil(file):
        group = file.create_group("notes")
        group["s"] = group
        target = b"/notes/" + b"s/" * (letters // 2) + b"s"
        for index in range(count):
            group.id.links.create_soft(b"%x" % index, target)

    return spoil


def chunked_tensors(count):
    """Tensors of 65,536 chunks, whose table follows from their shape and takes no space."""

    def spoil(file):
        for index in range(count):
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plan.set_chunk((1,))
            space = h5py.h5s.create_simple((MANY_CHUNKS,))
            h5py.h5d.create(file["model"].id, b"%x" % index, h5py.h5t.IEEE_F32LE, space, plan)

    return spoil


def nested_type(depth):
    """An attribute whose type is a record in a record in a record."""

    def spoil(file):
        kind = h5py.h5t.STD_I8LE
        for _ in range(depth):
            outer = h5py.h5t.create(h5py.h5t.COMPOUND, kind.get_size())
            outer.insert(b"a", 0, kind)
            kind = outer
        h5py.h5a.create(file.id, b"nested", kind, h5py.h5s.create(h5py.h5s.SCALAR))

    return spoil


def class_names(count):
    def spoil(file):
        names = np.array(["%x" % index for index in range(count)], h5py.string_dtype())
        replace(file, "classes", data=names)

    return spoil


def repeated_string(maker, count, letters):
    """Names that are stored once: all entries of /classes refer to the same long string."""

    def make(path):
        with maker(path) as file:
            names = np.array(["x" * letters] + [""] * (count - 1), h5py.string_dtype())
            place = replace(file, "classes", data=names).id.get_offset()
        with open(path, "r+b") as file:
            file.seek(place)
            reference = file.read(16)
            file.seek(place)
            file.write(reference * count)

    return make


def large_attribute(megabytes):
    return attribute("notes", np.zeros(megabytes << 20, np.uint8))


def bomb(file):
    """Images of one chunk: 600 KiB in the file, 592 MiB in memory."""
    shape = (37, 4096, 4096, 1)
    packer = zlib.compressobj(1)
    block = bytes(1 << 20)
    packed = b"".join(packer.compress(block) for _ in range(shape[0] * 16)) + packer.flush()
    dataset = replace(file, "images", shape=shape, dtype=np.uint8, chunks=shape, compression="gzip")
    dataset.id.write_direct_chunk((0,) * 4, packed)
    replace(file, "labels", data=np.zeros(shape[0], np.int32))


def packed_images(shape, chunk):
    """Images of zeros, of which every chunk is packed to a thousandth."""

    def spoil(file):
        packed = zlib.compress(bytes(int(np.prod(chunk))), 9)
        dataset = replace(
            file, "images", shape=shape, dtype=np.uint8, chunks=chunk, compression="gzip"
        )
        corners = [range(0, extent, step) for extent, step in zip(shape, chunk)]
        for corner in itertools.product(*corners):
            dataset.id.write_direct_chunk(corner, packed)
        replace(file, "labels", data=np.zeros(shape[0], np.int32))

    return spoil


def branching_links(levels, width):
    """A soft link that follows `width` others one after the other, each of which does the same."""

    def spoil(file):
        for level in range(levels):
            file["level%d" % level] = h5py.SoftLink(
                "/" + "/".join(["level%d" % (level + 1)] * width)
            )
        file["level%d" % levels] = h5py.SoftLink("/")
        del file["model/fc.bias"]
        file["model/fc.bias"] = h5py.SoftLink("/level0/model")

    return spoil


def sparse_seal(path):
    """A file of 8 GiB without blocks on the disk, almost all of which its seal takes for itself."""
    rest = 1000
    with open(path, "wb") as file:
        file.write(b"TRIREME1" + struct.pack("<Q", rest))
        file.truncate((1 << 33) + rest)


def endless_trees(maker, spoil):
    """Each B-tree becomes its own child, so a search never reaches a leaf."""

    def make(path):
        spoilt(maker, spoil)(path)
        with open(path, "rb") as file:
            content = bytearray(file.read())
        for found in list(re.finditer(b"TREE[\0\1]", bytes(content))):
            place = found.start()
            dimensions = 3  # of a chunk of a matrix: its own two and the size of an element
            key = 8 if content[place + 4] == 0 else 8 + 8 * dimensions
            content[place + 5] += 1
            struct.pack_into("<Q", content, place + 24 + key, place)
        with open(path, "wb") as file:
            file.write(content)

    return make


def endless_header(maker):
    """The header of the root group continues in itself."""

    def make(path):
        spoilt(maker, attributes(40))(path)
        with open(path, "rb") as file:
            content = bytearray(file.read())
        # A message of type 16 with 16 bytes: place and length of the next part of a header.
        found = re.search(rb"\x10\0\x10\0\0\0\0\0(.{8})(.{8})", bytes(content), re.DOTALL)
        place, length = struct.unpack("<QQ", found.group(1) + found.group(2))
        # The first message of that part becomes a continuation in the same part.
        struct.pack_into("<HHI", content, place, 16, 16, 0)
        struct.pack_into("<QQ", content, place + 8, place, length)
        with open(path, "wb") as file:
            file.write(content)

    return make


NEWEST = {"libver": "latest"}
SLOW = {
    "checkpoint": {
        "100,000 attributes": spoilt(checkpoint, attributes(100_000), **NEWEST),
        "3,000 attributes in one header": spoilt(checkpoint, attributes(3000)),
        "250,000 links to one object": spoilt(checkpoint, links(250_000, hard_link), **NEWEST),
        "150,000 links to one object in the oldest form": spoilt(
            checkpoint, links(150_000, hard_link)
        ),
        "200,000 soft links to one object": spoilt(checkpoint, links(200_000, soft_link), **NEWEST),
        "60,000 groups": spoilt(checkpoint, groups(60_000), **NEWEST),
        "12,000 groups in the oldest form": spoilt(checkpoint, groups(12_000)),
        "40,000 tensors": spoilt(checkpoint, datasets(40_000), **NEWEST),
        "a trillion paths": spoilt(checkpoint, multiplying_paths(12, 10), **NEWEST),
        "soft links of 30,000 steps": spoilt(checkpoint, long_soft_links(250, 60_000), **NEWEST),
        "two million chunks": spoilt(checkpoint, chunked_tensors(30), **NEWEST),
        "a type nested 1,000 times": spoilt(checkpoint, nested_type(1000), **NEWEST),
        "an attribute of 12 MiB": spoilt(checkpoint, large_attribute(12), **NEWEST),
        "B-trees without an end": endless_trees(checkpoint, many_tensor_chunks(1000)),
        "a header without an end": endless_header(checkpoint),
        "links of ten links each": spoilt(checkpoint, branching_links(12, 10)),
    },
    "images": {
        "250,000 classes": spoilt(images, class_names(250_000)),
        "100,000 classes of one string of 1 MiB": repeated_string(images, 100_000, 1 << 20),
        "65,536 chunks in a B-tree": spoilt(images, many_images(MANY_CHUNKS)),
        "65,536 chunks in an array": spoilt(images, many_images(MANY_CHUNKS), **NEWEST),
        "a chunk of 592 MiB": spoilt(images, bomb),
        "an image of 3 GiB in chunks of 1 MiB": spoilt(
            images, packed_images((1, 32768, 32768, 3), (1, 1024, 1024, 1))
        ),
        "chunks of one column": spoilt(
            images, packed_images((320_000, 64, 64, 1), (320_000, 1, 64, 1))
        ),
        "a seal of 8 GiB": sparse_seal,
    },
}
