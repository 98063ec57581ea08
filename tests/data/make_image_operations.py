#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes image_operations.png and image_operations.txt, with which a unit test compares.

  V/bin/python tests/data/make_image_operations.py [--height 20] [--width 24] [--folder tests/data]

The Python that runs the script needs torchvision: V/bin/pip install torch torchvision. The picture
is a column of images. The first one is the source; the others are made from it by torchvision, on
PIL images. Each has a line in the text file: an operation of RandAugment with magnitude and sign,
or one of ColorJitter with its value.
"""

import argparse
import pathlib
import sys

try:
    import numpy as np
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import RandAugment
    from torchvision.transforms.v2 import functional
except ImportError as error:
    sys.exit("make_image_operations.py: %s; see --help for what to install" % error)

JITTERS = {
    "brightness": (0.55, 1.4),
    "contrast": (0.6, 1.45),
    "saturation": (0, 0.7, 1.9),
    "hue": (-0.5, -0.1, 0.07, 0.31),
}


def source(height, width):
    """Returns an image with gradients, edges, noise and saturated colors."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:height, :width]
    waves = [110 + 90 * np.sin(x / (3 + c) + c) * np.cos(y / (5 - c)) for c in range(3)]
    image = np.stack(waves, axis=-1) + rng.normal(0, 6, (height, width, 3))
    image[height // 2 :, : width // 3] = rng.integers(0, 256, 3)
    image[: height // 4, width // 2 :, rng.integers(3)] = 255
    return Image.fromarray(np.clip(image, 8, 250).astype(np.uint8))


def rand_augmented(image):
    """Yields the lines and images of RandAugment, whose draws are replaced by given values."""
    transform = RandAugment()
    space = transform._AUGMENTATION_SPACE
    for name, (magnitudes_of, has_sign) in space.items():
        magnitudes = magnitudes_of(31, image.height, image.width)
        for number in (9,) if magnitudes is None else (9, 21, 30) if not has_sign else (9, 30):
            value = 0.0 if magnitudes is None else float(magnitudes[number])
            for sign in (1, -1) if has_sign else (1,):
                result = transform._apply_image_or_video_transform(
                    image, name, sign * value, InterpolationMode.NEAREST, transform._fill
                )
                yield "rand_augment %s %d %d" % (name, number, sign), result


def jittered(image):
    for name, values in JITTERS.items():
        for value in values:
            result = getattr(functional, "adjust_" + name)(image, value)
            yield "color_jitter %s %s" % (name, value), result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--height", type=int, default=20)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--folder", type=pathlib.Path, default="tests/data")
    arguments = parser.parse_args()
    image = source(arguments.height, arguments.width)
    lines, images = ["source %d %d" % (image.height, image.width)], [image]
    for line, result in (*rand_augmented(image), *jittered(image)):
        lines.append(line)
        images.append(result)
    (arguments.folder / "image_operations.txt").write_text("\n".join(lines) + "\n")
    column = Image.fromarray(np.concatenate([np.asarray(i) for i in images]))
    column.save(arguments.folder / "image_operations.png", optimize=True)


if __name__ == "__main__":
    main()
