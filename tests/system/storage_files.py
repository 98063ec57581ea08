# SPDX-License-Identifier: Apache-2.0
"""Valid HDF5 files in every kind of storage: writers of datasets, and tables of shards and
checkpoints made from them.

A writer stores values under a name in an open file. In tables whose name begins with UNUSUAL the
storage need not be read, but it must not be misread.
"""

import ctypes

import h5py
import numpy as np

from hostile_storage import hdf5_library

DONT_FILTER_PARTIAL_CHUNKS = 2  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
# Decks that need nothing but a training set of images, or of tokens.
TRAINING = """\
[optimizer]
kind = "adamw"
[schedule]
kind = "constant"
rate = 0.01
[monitor]
tensorboard = false
"""
IMAGES_DECK = """
[run]
name = "storage"
seed = 5
stop = "8 steps"
[model]
kind = "mlp"
widths = [16]
[data]
train = "shards"
[batch]
global = 12
micro = 6
""" + TRAINING
TOKENS_DECK = """
[run]
name = "storage"
seed = 5
stop = "4 steps"
[model]
kind = "gpt"
layers = 1
heads = 2
width = 16
context = 16
[data]
train = "shards"
[batch]
global = 8
micro = 4
""" + TRAINING
IMAGES = np.random.default_rng(1).integers(0, 256, (96, 12, 10, 3), dtype=np.uint8)
LABELS = np.random.default_rng(2).integers(0, 5, 96).astype("<i4")
TOKENS = np.random.default_rng(3).integers(0, 300, 2500).astype("<u2")
DOCUMENTS = np.array([0, 700, 1800, 2500], "<u8")


def plan(layout=None, early=False):
    """Returns a new plan for create_dataset(dcpl=...), which changes it."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if layout is not None:
        made.set_layout(layout)
    if early:
        made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    return made


def put(name, **options):
    """Returns a writer of one dataset. `type` converts its values; `early` allocates its chunks at
    once, `compact` stores it in its header."""
    early, compact = options.pop("early", False), options.pop("compact", False)
    kind = options.pop("type", None)

    def write(file, values):
        # A list of chunk extents is as long as the dataset has dimensions.
        if early or compact:
            options["dcpl"] = plan(h5py.h5d.COMPACT if compact else None, early)
        file.create_dataset(name, data=values if kind is None else values.astype(kind), **options)

    return write


def linked(name, hard):
    """Stores a dataset under another name. The usual one is a link to it."""

    def write(file, values):
        stored = file.create_dataset("stored/" + name, data=values)
        file[name] = stored if hard else h5py.SoftLink("stored/" + name)

    return write


def unfiltered_chunk(name, chunks):
    """The second chunk is stored as it is, which its mask of filters says."""

    def write(file, values):
        dataset = file.create_dataset(
            name, data=values, chunks=chunks, compression="gzip", shuffle=True
        )
        place = (chunks[0],) + (0,) * (values.ndim - 1)
        part = np.zeros(chunks, values.dtype)
        stored = values[tuple(slice(first, first + extent) for first, extent in zip(place, chunks))]
        part[tuple(slice(0, extent) for extent in stored.shape)] = stored
        dataset.id.write_direct_chunk(place, part.tobytes(), filter_mask=3)

    return write


def unfiltered_edges(name, chunks):
    """Chunks that cross an end of the dataset are stored as they are, which no mask says."""

    def write(file, values):
        made = plan()
        made.set_chunk(chunks)
        made.set_deflate(6)
        library = hdf5_library()
        library.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
        if library.H5Pset_chunk_opts(made.id, DONT_FILTER_PARTIAL_CHUNKS) < 0:
            raise RuntimeError("H5Pset_chunk_opts")
        space = h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(
            file.id, name.encode(), h5py.h5t.py_create(values.dtype), space, made
        )
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)

    return write


def of_type(name, kind):
    """Stores a dataset in a type that numpy does not have."""

    def write(file, values):
        *groups, last = name.split("/")
        group = file.require_group("/".join(groups)) if groups else file
        space = h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(group.id, last.encode(), kind, space)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)

    return write


def bits(kind, precision, offset):
    """Returns an integer type that uses only some of its bits."""
    made = kind.copy()
    made.set_precision(precision)
    made.set_offset(offset)
    return made


def bfloat16():
    made = h5py.h5t.IEEE_F32LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_precision(16)
    made.set_size(2)
    made.set_ebias(127)
    return made


LATEST = {"libver": "latest"}
GZIP = {"compression": "gzip"}
SHUFFLE = {"shuffle": True}
SPLIT = (7, 5, 4, 2)  # splits every dimension of the images, with smaller chunks at every end
# Case -> (options of the file, writer of /images, writer of /labels).
IMAGE_SHARDS = {
    "chunks": ({}, put("images", chunks=SPLIT), put("labels", chunks=(7,))),
    "gzip": ({}, put("images", chunks=SPLIT, **GZIP), put("labels", chunks=(7,), **GZIP)),
    "shuffle": ({}, put("images", chunks=SPLIT, **SHUFFLE), put("labels", chunks=(7,), **SHUFFLE)),
    "gzip and shuffle": (
        {},
        put("images", chunks=SPLIT, **GZIP, **SHUFFLE),
        put("labels", chunks=(7,), **GZIP, **SHUFFLE),
    ),
    "strongest gzip": (
        {},
        put("images", compression="gzip", compression_opts=9),
        put("labels", compression="gzip", compression_opts=9),
    ),
    "a chunk without its filters": (
        {},
        unfiltered_chunk("images", (20, 12, 10, 3)),
        unfiltered_chunk("labels", (20,)),
    ),
    "chunks that can grow": (
        {},
        put("images", chunks=SPLIT, maxshape=(None,) * 4),
        put("labels", chunks=(7,), maxshape=(None,)),
    ),
    "chunks beyond the ends": (
        {},
        put("images", chunks=(100, 16, 16, 4), maxshape=(None,) * 4, **GZIP),
        put("labels", chunks=(100,), maxshape=(None,), **SHUFFLE),
    ),
    "compact labels": ({}, put("images"), put("labels", compact=True)),
    "compact big-endian labels": ({}, put("images"), put("labels", compact=True, type=">i8")),
    "big-endian int64 labels": ({}, put("images"), put("labels", type=">i8")),
    "big-endian labels in chunks": (
        {},
        put("images"),
        put("labels", type=">i8", chunks=(7,), **GZIP, **SHUFFLE),
    ),
    "labels of uint8": ({}, put("images"), put("labels", type="u1")),
    "big-endian labels of int16": ({}, put("images"), put("labels", type=">i2")),
    "labels of uint64": ({}, put("images"), put("labels", type="<u8")),
    "hard links": ({}, linked("images", hard=True), linked("labels", hard=True)),
    "soft links": ({}, linked("images", hard=False), linked("labels", hard=False)),
    "the newest form": (LATEST, put("images"), put("labels")),
    "the newest form, a single chunk": (
        LATEST,
        put("images", chunks=IMAGES.shape),
        put("labels", chunks=LABELS.shape),
    ),
    "the newest form, a single compressed chunk": (
        LATEST,
        put("images", chunks=IMAGES.shape, **GZIP),
        put("labels", chunks=LABELS.shape, **GZIP, **SHUFFLE),
    ),
    "the newest form, no index": (
        LATEST,
        put("images", chunks=SPLIT, early=True),
        put("labels", chunks=(7,), early=True),
    ),
    "the newest form, fixed array": (
        LATEST,
        put("images", chunks=(32, 6, 5, 3)),
        put("labels", chunks=(7,)),
    ),
    "the newest form, compressed fixed array in pages": (
        LATEST,
        put("images", chunks=(1, 5, 4, 2), **GZIP),
        put("labels", chunks=(7,), **GZIP),
    ),
    "the newest form, extensible array": (
        LATEST,
        put("images", chunks=SPLIT, maxshape=(None, 12, 10, 3)),
        put("labels", chunks=(1,), maxshape=(None,)),
    ),
    "the newest form, compressed extensible array": (
        LATEST,
        put("images", chunks=(1, 5, 4, 2), maxshape=(None, 12, 10, 3), **GZIP),
        put("labels", chunks=(1,), maxshape=(None,), **GZIP, **SHUFFLE),
    ),
    "the newest form, B-tree": (
        LATEST,
        put("images", chunks=SPLIT, maxshape=(None, None, 10, 3)),
        put("labels", chunks=(7,), maxshape=(None,)),
    ),
    "the newest form, compressed B-tree": (
        LATEST,
        put("images", chunks=(1, 5, 4, 2), maxshape=(None, None, 10, 3), **GZIP, **SHUFFLE),
        put("labels", chunks=(7,), maxshape=(None,), **GZIP),
    ),
    "HDF5 1.8": ({"libver": ("v108", "v108")}, put("images", chunks=SPLIT, **GZIP), put("labels")),
    "objects in the order of their creation": ({"track_order": True}, put("images"), put("labels")),
    "space in pages": (
        dict(LATEST, fs_strategy="page", fs_page_size=4096),
        put("images", chunks=SPLIT, **GZIP),
        put("labels"),
    ),
    "a user block of 512 bytes": ({"userblock_size": 512}, put("images"), put("labels")),
    "a user block of 2048 bytes": ({"userblock_size": 2048}, put("images"), put("labels")),
    "a user block before chunks": (
        {"userblock_size": 2048},
        put("images", chunks=SPLIT),
        put("labels", chunks=(7,), **GZIP),
    ),
    "a user block before chunks of the newest form": (
        dict(LATEST, userblock_size=512),
        put("images", chunks=SPLIT, **GZIP),
        put("labels", chunks=(7,), maxshape=(None,)),
    ),
    "a user block before compact labels": (
        {"userblock_size": 512},
        put("images", chunks=IMAGES.shape, **GZIP),
        put("labels", compact=True),
    ),
}
UNUSUAL_IMAGE_SHARDS = {
    "unfiltered chunks at the ends": (
        LATEST,
        unfiltered_edges("images", SPLIT),
        unfiltered_edges("labels", (7,)),
    ),
    "labels of 12 of 16 bits": (
        {},
        put("images"),
        of_type("labels", bits(h5py.h5t.STD_I16LE, 12, 2)),
    ),
    "labels of 24 of 32 bits": (
        {},
        put("images"),
        of_type("labels", bits(h5py.h5t.STD_U32BE, 24, 8)),
    ),
}
# Case -> (options of the file, writer of /tokens, writer of /documents).
TOKEN_SHARDS = {
    "big-endian uint16": ({}, put("tokens", type=">u2"), put("documents", type=">u8")),
    "big-endian uint32": ({}, put("tokens", type=">u4"), put("documents", type=">i4")),
    "uint32": ({}, put("tokens", type="<u4"), put("documents", compact=True)),
    "chunks": ({}, put("tokens", chunks=(70,)), put("documents", chunks=(3,))),
    "big-endian gzip and shuffle": (
        {},
        put("tokens", type=">u4", chunks=(700,), **GZIP, **SHUFFLE),
        put("documents", type=">u8", chunks=(3,), **GZIP, **SHUFFLE),
    ),
    "shuffle": ({}, put("tokens", chunks=(700,), **SHUFFLE), put("documents")),
    "a chunk without its filters": ({}, unfiltered_chunk("tokens", (700,)), put("documents")),
    "the newest form, many chunks": (
        LATEST,
        put("tokens", chunks=(1,), maxshape=(None,), **GZIP),
        put("documents", chunks=(1,)),
    ),
    "soft links": ({}, linked("tokens", hard=False), linked("documents", hard=False)),
    "a user block": (
        {"userblock_size": 2048},
        put("tokens", type=">u2"),
        put("documents", chunks=(2,)),
    ),
}
UNUSUAL_TOKEN_SHARDS = {
    "12 of 16 bits": ({}, of_type("tokens", bits(h5py.h5t.STD_U16LE, 12, 2)), put("documents")),
    "unfiltered chunks at the ends": (LATEST, unfiltered_edges("tokens", (700,)), put("documents")),
}


def tensors(**options):
    """Returns a writer of each tensor of a checkpoint. `halves` splits it into chunks of about half
    of each extent."""
    kind, halves = options.pop("type", None), options.pop("halves", False)

    def write(file, name, values):
        more = dict(options)
        if halves:
            more["chunks"] = tuple(extent // 2 + 1 for extent in values.shape)
        file.create_dataset(name, data=values if kind is None else values.astype(kind), **more)

    return write


def tensors_of_type(kind):
    return lambda file, name, values: of_type(name, kind)(file, values)


def compact_tensors(file, name, values):
    put(name, compact=values.nbytes < 60000)(file, values)


def linked_tensors(file, name, values):
    file["stored/" + name] = values
    file[name] = h5py.SoftLink("/stored/" + name)


# Case -> (options of the file, writer of each tensor).
CHECKPOINTS = {
    "float64": ({}, tensors(type="<f8")),
    "float16": ({}, tensors(type="<f2")),
    "big-endian float32": ({}, tensors(type=">f4")),
    "big-endian float64": ({}, tensors(type=">f8")),
    "big-endian float16": ({}, tensors(type=">f2")),
    "chunks": ({}, tensors(halves=True)),
    "gzip": ({}, tensors(halves=True, **GZIP)),
    "float64, gzip and shuffle": ({}, tensors(type="<f8", halves=True, **GZIP, **SHUFFLE)),
    "big-endian float16, shuffle": ({}, tensors(type=">f2", halves=True, **SHUFFLE)),
    "the newest form": (LATEST, tensors()),
    "the newest form, gzip": (LATEST, tensors(halves=True, **GZIP)),
    "compact": ({}, compact_tensors),
    "soft links": ({}, linked_tensors),
}
UNUSUAL_CHECKPOINTS = {
    "a user block of 512 bytes": ({"userblock_size": 512}, tensors()),
    "a user block of 2048 bytes": ({"userblock_size": 2048}, tensors(halves=True, **GZIP)),
    "80-bit": ({}, tensors(type=np.longdouble)),
    "bfloat16": ({}, tensors_of_type(bfloat16())),
}
