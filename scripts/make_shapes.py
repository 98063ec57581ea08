#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small photographs of ten shapes and patterns: JPEG files in a folder for each class.

Usage: make_shapes.py FOLDER    needs numpy and Pillow

FOLDER/train has 4,000 images and FOLDER/validation 1,000, each of 32 x 32 pixels. Colors, place,
size, tilt, light and noise are drawn at random, alike in every class, so only the form tells the
classes apart. The same versions of the packages write the same files.
"""

import pathlib
import sys

import numpy as np
from PIL import Image

SIDE, OVERSAMPLING = 32, 4
SPLITS = {"train": 400, "validation": 100}  # images of each class


def polygon(x, y, corners, turn):
    """Returns where (x, y) is inside of a regular polygon of inner radius 1."""
    angles = turn + 2 * np.pi * np.arange(corners) / corners
    return np.all([x * np.cos(a) + y * np.sin(a) < 1 for a in angles], axis=0)


def cross(x, y):
    return ((abs(x) < 0.4) | (abs(y) < 0.4)) & (np.maximum(abs(x), abs(y)) < 1.2)


def wave(values, length=0.9):
    return np.sin(2 * np.pi * values / length) > 0


# Each form takes coordinates whose unit is the size of the object.
FORMS = {
    "checkerboard": lambda x, y: wave(x) ^ wave(y),
    "cross": cross,
    "disk": lambda x, y: x**2 + y**2 < 1.2,
    "dots": lambda x, y: ((x + 9) % 0.9 - 0.45) ** 2 + ((y + 9) % 0.9 - 0.45) ** 2 < 0.06,
    "hexagon": lambda x, y: polygon(x, y, 6, 0) & ~polygon(1.8 * x, 1.8 * y, 6, 0),
    "horizontal": lambda x, y: wave(y),
    "ring": lambda x, y: wave(np.hypot(x, y), 0.8),
    "square": lambda x, y: np.maximum(abs(x), abs(y)) < 1,
    "triangle": lambda x, y: polygon(x * 1.5, y * 1.5, 3, -np.pi / 2),
    "vertical": lambda x, y: wave(x),
}


def draw(form, rng):
    """Returns an image of a form: uint8 [SIDE, SIDE, 3]."""
    # 1. The form, in coordinates that are moved, scaled and tilted; smooth at its edges.
    at = (np.arange(SIDE * OVERSAMPLING) + 0.5) / OVERSAMPLING
    size, tilt = rng.uniform(7, 11), rng.normal(0, 0.12)
    x, y = np.meshgrid(at - SIDE / 2 - rng.uniform(-4, 4), at - SIDE / 2 - rng.uniform(-4, 4))
    x, y = np.cos(tilt) * x + np.sin(tilt) * y, np.cos(tilt) * y - np.sin(tilt) * x
    inside = FORMS[form](x / size, y / size).astype(float)
    inside = inside.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING).mean((1, 3))[..., None]
    # 2. Two colors that differ, under light that changes across the image.
    while True:
        colors = rng.uniform(40, 215, (2, 3))
        if abs(colors[0] - colors[1]).mean() > 45:
            break
    image = colors[0] + inside * (colors[1] - colors[0])
    slope = rng.normal(0, 0.6, 2)
    row, column = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    image = image + (slope[0] * row + slope[1] * column)[..., None]
    # 3. Noise of the camera.
    image = image + rng.normal(0, rng.uniform(5, 20), image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    for seed, (split, count) in enumerate(SPLITS.items()):
        rng = np.random.default_rng(seed)
        for form in FORMS:
            folder = pathlib.Path(sys.argv[1], split, form)
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                Image.fromarray(draw(form, rng)).save(folder / ("%03d.jpg" % i), quality=90)


if __name__ == "__main__":
    main()
