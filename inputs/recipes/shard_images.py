#!/usr/bin/env python3
"""Makes a dataset from JPEG or PNG files with a folder for each class, as ImageNet has them.

  python3 shard_images.py FOLDER OUT [--size 224] [--processes N]

FOLDER/CLASS/FILE: the classes are numbered in the order of their names. Each image is scaled until
its shorter side has 8/7 of the size (256 pixels for 224). Its center is stored as RGB. The images
are in random order, which is the same in every call.

Needs Pillow, h5py and numpy: python3 -m pip install pillow h5py numpy
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import shutil
import sys

SHARD_BYTES = 256 << 20


def refuse(problem):
    print("shard_images.py: " + problem, file=sys.stderr)
    sys.exit(2)


try:
    import h5py
    import numpy as np
    from PIL import Image, UnidentifiedImageError
except ImportError as error:
    refuse("%s: python3 -m pip install pillow h5py numpy" % error)


def read_image(path, size):
    """Returns the center of the image as uint8 [size, size, 3]."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    scale = size * 8 / 7 / min(image.size)
    width, height = (max(size, round(extent * scale)) for extent in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(scaled.crop((left, top, left + size, top + size)))


def write_shard(path, samples, classes, size):
    """Writes one shard of the samples, which are pairs (file, label). Returns its path."""
    images = np.empty((len(samples), size, size, 3), np.uint8)
    for i, (source, _) in enumerate(samples):
        try:
            images[i] = read_image(source, size)
        except (OSError, UnidentifiedImageError) as error:
            raise ValueError("%s: cannot be read as an image: %s" % (source, error)) from error
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "trireme-shard"
        file.create_dataset("images", data=images)
        file.create_dataset("labels", data=np.array([label for _, label in samples], np.int32))
        file.create_dataset("classes", data=classes, dtype=h5py.string_dtype())
    return path


def find_samples(folder):
    """Returns the names of the classes, and all pairs (file, label) in random order."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    samples = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
        if path.is_file()
    ]
    random.Random(0).shuffle(samples)
    return classes, samples


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="has a folder of files for each class")
    parser.add_argument("out", type=pathlib.Path, help="folder of the shards, new or empty")
    parser.add_argument("--size", type=int, default=224, help="height and width (default: 224)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    if given.size < 1 or given.processes < 1:
        refuse("--size and --processes must be at least 1")
    if not given.folder.is_dir():
        refuse("%s: no such folder" % given.folder)
    if given.out.exists() and (not given.out.is_dir() or any(given.out.iterdir())):
        refuse("%s: must be a new or empty folder" % given.out)
    return given


def main():
    given = arguments()
    classes, samples = find_samples(given.folder)
    if len(classes) < 2 or not samples:
        refuse("%s: has no images in folders of two or more classes" % given.folder)
    # A half-made dataset is not found under its final name.
    staging = given.out.with_name(given.out.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    count = -(-len(samples) // max(1, SHARD_BYTES // (given.size * given.size * 3)))
    with concurrent.futures.ProcessPoolExecutor(given.processes) as pool:
        shards = [
            pool.submit(
                write_shard,
                staging / ("shard_%05d.h5" % i),
                samples[i * len(samples) // count : (i + 1) * len(samples) // count],
                classes,
                given.size,
            )
            for i in range(count)
        ]
        try:
            for shard in concurrent.futures.as_completed(shards):
                print(shard.result(), flush=True)
        except ValueError as error:
            pool.shutdown(cancel_futures=True)
            refuse(str(error))
    if given.out.exists():
        given.out.rmdir()
    staging.rename(given.out)
    print("%s: %d images of %d classes" % (given.out, len(samples), len(classes)))


if __name__ == "__main__":
    main()
