# SPDX-License-Identifier: Apache-2.0
"""Makers of HDF5 files whose storage is refused.

REFUSED maps the kind of a file and the name of a case to (function that writes the file at a path,
words that the error message must contain).
"""

import ctypes
import re

from hostile_files import OUTSIDE, attribute, checkpoint, images, replace, tokens

import h5py
import numpy as np

MAX_CHUNKS = 2_000_000  # of a dataset that is read
MANY_CHUNKS = 65_536  # that can be written in seconds


def hdf5_library():
    """Returns the HDF5 library that h5py has loaded, for functions that h5py lacks."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split()[-1]
            if re.search(r"/libhdf5(_serial|_openmpi|_mpich)?[-.][^/]*$", path):
                return ctypes.CDLL(path)
    raise RuntimeError("h5py has loaded no libhdf5")


def spoilt(maker, spoil, **options):
    """Returns a function that writes the file of `maker` after `spoil` has changed it."""

    def make(path):
        with maker(path, **options) as file:
            spoil(file)

    return make


# Metadata cache images


class ImageOptions(ctypes.Structure):
    """H5AC_cache_image_config_t."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("generate_image", ctypes.c_bool),
        ("save_resize_status", ctypes.c_bool),
        ("entry_ageout", ctypes.c_int),
    ]


def with_cache_image(maker):
    """The last program that wrote the file has left an image of its metadata cache in it."""

    def make(path):
        maker(path, libver="latest").close()
        library = hdf5_library()
        library.H5Pset_mdc_image_config.argtypes = [ctypes.c_int64, ctypes.POINTER(ImageOptions)]
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
        if library.H5Pset_mdc_image_config(access.id, ImageOptions(1, True, False, -1)) < 0:
            raise RuntimeError("H5Pset_mdc_image_config")
        opened = h5py.h5f.open(path.encode(), h5py.h5f.ACC_RDWR, access)
        with h5py.File(opened) as file:
            file.attrs["changed"] = 1
            file.visititems(lambda name, item: None)

    return make


def place_of_cache_image(path):
    """Returns (offset, length)."""
    library = hdf5_library()
    number = ctypes.POINTER(ctypes.c_uint64)
    library.H5Fget_mdc_image_info.argtypes = [ctypes.c_int64, number, number]
    place, length = ctypes.c_uint64(), ctypes.c_uint64()
    with h5py.File(path) as file:
        if library.H5Fget_mdc_image_info(file.id.id, place, length) < 0 or length.value == 0:
            raise RuntimeError(path + " has no cache image")
    return place.value, length.value


def with_damaged_cache_image(maker, damage):
    """`damage` maps the bytes of the image to others of the same number."""

    def make(path):
        with_cache_image(maker)(path)
        place, length = place_of_cache_image(path)
        with open(path, "r+b") as file:
            file.seek(place)
            content = damage(file.read(length))
            file.seek(place)
            file.write(content)

    return make


# Chunks and filters


def one_byte_chunks(name, shape):
    """Splits a dataset of bytes into as many chunks as it has elements."""

    def spoil(file):
        replace(file, name, data=np.zeros(shape, np.uint8), chunks=(1,) * len(shape))

    return spoil


def many_images(count):
    """Images of one pixel, and as many labels."""

    def spoil(file):
        one_byte_chunks("images", (count, 1, 1, 1))(file)
        replace(file, "labels", data=np.zeros(count, np.int32))

    return spoil


def too_many_chunks(name, shape, dtype):
    """One chunk for each element, and more than are read. Not written: that would take minutes."""

    def spoil(file):
        del file[name]
        file.create_dataset(name, shape=shape, dtype=dtype, chunks=(1,) * len(shape))

    return spoil


def many_tensor_chunks(count):
    def spoil(file):
        replace(file, "model/fc.weight", data=np.zeros((count, 1), np.float32), chunks=(1, 1))

    return spoil


def filtered(name, **options):
    """Writes the values of a dataset again, through filters."""

    def spoil(file):
        values = file[name][...]
        replace(file, name, data=values, chunks=values.shape, **options)

    return spoil


def with_filter(name, number, values=()):
    """Stores a dataset with any filter: its number, and the values that it takes."""

    def spoil(file):
        data = file[name][...]
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk(data.shape)
        plan.set_filter(number, h5py.h5z.FLAG_OPTIONAL, values)
        replace(file, name, data=data, chunks=data.shape, dcpl=plan, allow_unknown_filter=True)

    return spoil


def partly_written(name, rows, **options):
    """Splits a dataset into chunks of some rows and leaves the second chunk out."""

    def spoil(file):
        values = file[name][...]
        dataset = replace(
            file,
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(rows,) + values.shape[1:],
            **options,
        )
        for first in range(0, len(values), rows):
            if first != rows:
                dataset[first : first + rows] = values[first : first + rows]

    return spoil


def unwritten(name, **options):
    def spoil(file):
        values = file[name]
        replace(file, name, shape=values.shape, dtype=values.dtype, **options)

    return spoil


# Links and storage outside of the file, in objects that the program does not use


def unused(path, target):
    def spoil(file):
        file[path] = target

    return spoil


def unused_external_storage(file):
    file.create_dataset("notes/raw", shape=(8,), dtype="u1", external=[(OUTSIDE + "raw.bin", 0, 8)])


def unused_virtual(source):
    def spoil(file):
        file["notes/source"] = np.zeros(8, np.uint8)
        layout = h5py.VirtualLayout(shape=(8,), dtype="u1")
        layout[...] = h5py.VirtualSource(source, "notes/source", shape=(8,))
        file.create_virtual_dataset("notes/virtual", layout)

    return spoil


def link_of_another_class(maker):
    """An external link whose class is changed to a number that users may register."""

    def make(path):
        spoilt(maker, unused("notes/away", h5py.ExternalLink(OUTSIDE + "other.h5", "/")))(path)
        change(path, b"\x40\x04away", b"\x64\x04away")

    return make


def change(path, before, after):
    """Replaces the only place of these bytes."""
    with open(path, "rb") as file:
        content = file.read()
    if content.count(before) != 1 or len(before) != len(after):
        raise RuntimeError("%s has %d places of %r" % (path, content.count(before), before))
    with open(path, "wb") as file:
        file.write(content.replace(before, after))


def of_filters(name):
    """Cases of all filters that are refused, for a dataset."""
    cases = {
        "fletcher32": filtered(name, fletcher32=True),
        "lzf": filtered(name, compression="lzf"),
        "nbit": with_filter(name, h5py.h5z.FILTER_NBIT),
        "32015": with_filter(name, 32015, (3,)),
    }
    if h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        cases["szip"] = filtered(name, compression="szip")
    return cases


def refused_filters(maker, name, scaled):
    cases = of_filters(name) | {"scaleoffset": filtered(name, scaleoffset=scaled)}
    # h5repack lacks the filters of others, and leaves out their datasets.
    remedies = {"lzf": "hdf5plugin", "32015": "hdf5plugin"}
    return {
        "the filter %s for /%s"
        % (filter_name, name): (
            spoilt(maker, spoil),
            (filter_name, remedies.get(filter_name, "h5repack"), name),
        )
        for filter_name, spoil in cases.items()
    }


def refused_anywhere(maker):
    return {
        "a cache image": (with_cache_image(maker), "cache image"),
        "a cache image of zeros": (
            with_damaged_cache_image(maker, lambda image: bytes(len(image))),
            "",
        ),
        "a cache image of rubbish": (
            with_damaged_cache_image(maker, lambda image: image[:8] + b"\xa5" * (len(image) - 8)),
            "",
        ),
        "a cache image with changed lengths": (
            with_damaged_cache_image(
                maker, lambda image: image[:6] + b"\xff\xff\xff\x7f" * 4 + image[22:]
            ),
            "",
        ),
        "an unused link into another file": (
            spoilt(maker, unused("notes/away", h5py.ExternalLink(OUTSIDE + "other.h5", "/"))),
            ("link into another file", "/notes/away"),
        ),
        "an unused link to a missing file": (
            spoilt(maker, unused("a/b/c/d", h5py.ExternalLink("missing.h5", "/"))),
            ("link into another file", "/a/b/c/d"),
        ),
        "an unused soft link to a link into another file": (
            spoilt(
                maker,
                lambda f: [
                    unused("notes/away", h5py.ExternalLink(OUTSIDE + "other.h5", "/"))(f),
                    unused("notes/soft", h5py.SoftLink("/notes/away"))(f),
                ],
            ),
            "link into another file",
        ),
        "an unused link of an unknown class": (link_of_another_class(maker), "/notes/away"),
        "unused external storage": (
            spoilt(maker, unused_external_storage),
            ("external storage", "/notes/raw"),
        ),
        "an unused virtual dataset of another file": (
            spoilt(maker, unused_virtual(OUTSIDE + "other.h5")),
            ("virtual dataset", "/notes/virtual"),
        ),
        "an unused virtual dataset of the same file": (
            spoilt(maker, unused_virtual(".")),
            ("virtual dataset", "/notes/virtual"),
        ),
    }


TOO_MANY = ("2000000", "h5repack")
REFUSED = {
    "checkpoint": refused_anywhere(checkpoint)
    | refused_filters(checkpoint, "model/fc.weight", 3)
    | {
        "too many chunks of a tensor": (
            spoilt(checkpoint, too_many_chunks("model/fc.weight", (MAX_CHUNKS + 1, 1), "f4")),
            TOO_MANY,
        ),
        "too many chunks of a tensor in the newest form": (
            spoilt(
                checkpoint,
                too_many_chunks("model/fc.weight", (MAX_CHUNKS + 1, 1), "f4"),
                libver="latest",
            ),
            TOO_MANY,
        ),
        "a chunk of a tensor that was never written": (
            spoilt(checkpoint, partly_written("model/fc.weight", 2)),
            ("never written", "/model/fc.weight"),
        ),
        "a tensor that was never written": (
            spoilt(checkpoint, unwritten("model/fc.weight")),
            ("never written", "/model/fc.weight"),
        ),
    },
    "images": refused_anywhere(images)
    | refused_filters(images, "images", 0)
    | refused_filters(images, "labels", 0)
    | {
        "too many chunks of images": (
            spoilt(images, too_many_chunks("images", (MAX_CHUNKS + 1, 1, 1, 1), "u1")),
            TOO_MANY,
        ),
        "too many chunks of images in the newest form": (
            spoilt(
                images, too_many_chunks("images", (MAX_CHUNKS + 1, 1, 1, 1), "u1"), libver="latest"
            ),
            TOO_MANY,
        ),
        "a chunk of images that was never written": (
            spoilt(images, partly_written("images", 7)),
            ("never written", "/images"),
        ),
        "a compressed chunk of images that was never written": (
            spoilt(images, partly_written("images", 7, compression="gzip"), libver="latest"),
            ("never written", "/images"),
        ),
        "a chunk of labels that was never written": (
            spoilt(images, partly_written("labels", 7)),
            ("never written", "/labels"),
        ),
        "images that were never written": (
            spoilt(images, unwritten("images")),
            ("never written", "/images"),
        ),
        "chunks of which none was written": (
            spoilt(images, unwritten("images", chunks=(5, 12, 12, 1))),
            ("never written", "/images"),
        ),
    },
    "tokens": refused_anywhere(tokens)
    | refused_filters(tokens, "tokens", 0)
    | {
        "too many chunks of tokens": (
            spoilt(tokens, too_many_chunks("tokens", (MAX_CHUNKS + 1,), "u1")),
            TOO_MANY,
        ),
        "a chunk of tokens that was never written": (
            spoilt(tokens, partly_written("tokens", 300)),
            ("never written", "/tokens"),
        ),
        "a chunk of documents that was never written": (
            spoilt(tokens, partly_written("documents", 1)),
            ("never written", "/documents"),
        ),
    },
}
