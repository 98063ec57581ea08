#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what each key of [data.augment] does: docs/figures/augmentation.png.

Usage: contact_sheet.py TRIREME [OUT]    needs numpy and Pillow

Makes a dataset of eight drawn scenes, and lets `trireme check --images` draw it once for each row.
So the pictures come from the code that trains.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image, ImageDraw

OUT = pathlib.Path(__file__).resolve().parents[2] / "docs/figures/augmentation.png"
SIDE, SCENES, GAP, LABEL = 96, 8, 4, 190  # pixels; GAP is that of the program
CROP = "random_resized_crop = { size = 96 }"
COLORS = "color_jitter = { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }"
# Label and lines of [data.augment].
ROWS = (
    ("as stored", ""),
    ("random_crop = 12", "random_crop = 12"),
    ("flip = true", "flip = true"),
    ("random_resized_crop", CROP),
    ("color_jitter: brightness 0.6", "color_jitter = { brightness = 0.6 }"),
    ("color_jitter: contrast 0.8", "color_jitter = { contrast = 0.8 }"),
    ("color_jitter: saturation 1", "color_jitter = { saturation = 1.0 }"),
    ("color_jitter: hue 0.3", "color_jitter = { hue = 0.3 }"),
    ("rand_augment: 2 operations, 9", "rand_augment = { count = 2, magnitude = 9 }"),
    ("rand_augment: 2 operations, 20", "rand_augment = { count = 2, magnitude = 20 }"),
    ("erase: probability 1", "erase = { probability = 1.0 }"),
    ("mixup = 1", "mixup = 1.0"),
    ("cutmix = 1", "cutmix = 1.0"),
    (
        "all of them, cutmix or mixup",
        "\n".join((CROP, "flip = true", COLORS, "rand_augment = {}", "erase = {}"))
        + "\nmixup = 0.2\ncutmix = 1.0",
    ),
)
DECK = """
[run]
name = "sheet"
stop = "1 epoch"
[model]
kind = "resnet"
depth = 8
[data]
train = "scenes"
[data.augment]
%s
[batch]
global = 2
micro = 2
[optimizer]
kind = "sgd"
[schedule]
kind = "constant"
rate = 0.1
"""


def scene(number):
    """Returns a landscape with a house, a tree and a sun, drawn at four times the size."""
    rng = np.random.default_rng(number)
    side = 4 * SIDE
    light = np.linspace(0, 1, side)[:, None, None]
    top, bottom = rng.integers(60, 160, 3), rng.integers(150, 250, 3)
    sky = np.broadcast_to(top * (1 - light) + bottom * light, (side, side, 3))
    image = Image.fromarray(sky.astype(np.uint8))
    draw = ImageDraw.Draw(image)

    def color(low, high):
        return tuple(int(value) for value in rng.integers(low, high, 3))

    x, y = rng.integers(40, side - 40), rng.integers(30, 100)
    draw.ellipse((x - 28, y - 28, x + 28, y + 28), fill=(255, 236, 150))
    for hill in range(3):
        level = 210 + 45 * hill
        ground = [
            (step, level + 18 * np.sin(step / rng.uniform(40, 90) + hill))
            for step in range(0, side + 8, 8)
        ]
        green = (int(rng.integers(40, 90)), int(rng.integers(100, 170)), int(rng.integers(40, 90)))
        draw.polygon([(0, side), *ground, (side, side)], fill=green)
    x, y = rng.integers(40, side - 170), rng.integers(190, 240)
    draw.rectangle((x, y, x + 110, y + 90), fill=color(150, 240))
    draw.polygon([(x - 12, y), (x + 122, y), (x + 55, y - 60)], fill=color(60, 180))
    draw.rectangle((x + 45, y + 45, x + 70, y + 90), fill=color(30, 110))
    x = (x + 190) % (side - 60) + 30
    draw.rectangle((x - 6, y + 30, x + 6, y + 100), fill=(90, 60, 40))
    draw.ellipse((x - 34, y - 30, x + 34, y + 50), fill=(30, int(rng.integers(90, 140)), 50))
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def run(program, *words, cwd):
    result = subprocess.run([program, *words], cwd=cwd, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stdout + result.stderr)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1])
    program = str(pathlib.Path(sys.argv[1]).resolve())
    out = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else OUT)
    width = SCENES * (SIDE + GAP)
    sheet = Image.new("RGB", (LABEL + width, len(ROWS) * (SIDE + GAP) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number in range(SCENES):
            path = folder / "photos" / "ab"[number % 2] / ("%d.png" % number)
            path.parent.mkdir(parents=True, exist_ok=True)
            scene(number).save(path)
        run(program, "shard", "folder", "photos", "--out", "scenes", cwd=folder)
        for row, (label, lines) in enumerate(ROWS):
            (folder / "deck.toml").write_text(DECK % lines, encoding="utf-8")
            run(program, "check", "deck.toml", "--images", "row.png", cwd=folder)
            drawn = Image.open(folder / "row.png").crop((0, GAP, GAP + width, GAP + SIDE))
            top = GAP + row * (SIDE + GAP)
            sheet.paste(drawn, (LABEL - GAP, top))
            draw.text((8, top + SIDE // 2 - 6), label, fill="black")
    # A palette makes the file three times smaller.
    sheet.quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main()
