#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes fields of 16 channels with shapes in noise, and the class of each pixel: HDF5 files.

Usage: make_masks.py FOLDER    needs numpy and h5py

A field has 32 x 32 pixels. Class 0 is the background; disks, squares and crosses (1 to 3) lie on
it, each with its own mean in each channel. The noise of a channel is twice as large as the means,
so that a pixel alone does not tell its class. Rows at the edges of some fields were not observed:
their class is 255. FOLDER gets train.h5 (1,000 fields), validation.h5 (100) and test.h5 (200), each
with the datasets /radiance (int16 with scale_factor) and /mask. inputs/examples/masks.toml trains
on them.
"""

import pathlib
import sys

import h5py
import numpy as np

SIDE, CHANNELS, UNSEEN = 32, 16, 255
SETS = {"train": 1000, "validation": 100, "test": 200}
SCALE = 1 / 1024


def shapes(rng):
    """Returns the class of each pixel of a field."""
    y, x = np.mgrid[:SIDE, :SIDE]
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for kind in rng.permutation([1, 2, 3, 1, 2, 3])[: rng.integers(2, 6)]:
        row, column = rng.integers(4, SIDE - 4, 2)
        size = rng.integers(4, 8)
        dy, dx = abs(y - row), abs(x - column)
        mask[
            {
                1: dy**2 + dx**2 <= size**2,
                2: np.maximum(dy, dx) < size,
                3: (np.minimum(dy, dx) < 2) & (np.maximum(dy, dx) <= size),
            }[kind]
        ] = kind
    return mask


def make(count, spectra, rng):
    """Returns fields [count, 32, 32, 16] and their masks [count, 32, 32]."""
    masks = np.stack([shapes(rng) for _ in range(count)])
    fields = spectra[masks] + 2 * rng.normal(size=(*masks.shape, CHANNELS))
    for mask in masks:
        rows = rng.integers(1, 6)
        if rng.random() < 0.5:
            mask[rng.choice((slice(rows), slice(-rows, None)))] = UNSEEN
    return fields, masks


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    spectra = rng.normal(size=(4, CHANNELS))
    for name, count in SETS.items():
        fields, masks = make(count, spectra, rng)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["radiance"] = np.round(fields / SCALE).astype(np.int16)
            file["radiance"].attrs["scale_factor"] = SCALE
            file["mask"] = masks


if __name__ == "__main__":
    main()
