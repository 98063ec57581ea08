#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes Gaussian random fields with a power-law spectrum: HDF5 files of fields and of the numbers
that describe them.

Usage: make_fields.py FOLDER    needs numpy and h5py

A field has 64 x 64 points, periodic. The power of its Fourier modes falls as k to its index, from
-3 (smooth) to -1 (rough); its standard deviation is its amplitude, from 0.5 to 2. FOLDER gets
train.h5 (6,000 fields), validation.h5 (500) and test.h5 (1,000), each with the datasets /density,
/index and /amplitude. inputs/examples/fields.toml trains on them.
"""

import pathlib
import sys

import h5py
import numpy as np

SIDE = 64
SETS = {"train": 6000, "validation": 500, "test": 1000}


def make(count, rng):
    """Returns fields [count, 64, 64], their indices and their amplitudes."""
    index, amplitude = rng.uniform(-3, -1, count), rng.uniform(0.5, 2, count)
    k = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None])
    k[0, 0] = 1
    fields = np.empty((count, SIDE, SIDE))
    for field, power, size in zip(fields, index, amplitude):
        shape = k ** (power / 2)
        shape[0, 0] = 0  # The mean is 0.
        modes = np.fft.rfft2(rng.normal(size=(SIDE, SIDE))) * shape
        field[:] = np.fft.irfft2(modes, s=(SIDE, SIDE))
        field *= size / field.std()
    return fields, index, amplitude


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for name, count in SETS.items():
        fields, index, amplitude = make(count, rng)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["density"] = fields.astype(np.float32)
            file["index"] = index
            file["amplitude"] = amplitude


if __name__ == "__main__":
    main()
