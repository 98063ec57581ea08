#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reference/mix.json: images, losses and boxes of torchvision and PyTorch for given draws.

  V/bin/python make_mix_reference.py [FILE]

V is a virtual environment with torch and torchvision. The tests of the kernels and of the draws
compare with the file, so that they need neither.
"""

import json
import os
import sys
from unittest import mock

import torch
from torch.nn import functional as nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as images

BATCH, HEIGHT, WIDTH, CHANNELS, CLASSES, SMOOTHING = 8, 6, 7, 3, 6, 0.1
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# row and column of the crop, flip, erased [top, bottom, left, right], mix, weight of the own sample
# before a box is clipped, center of the box (row, column)
SAMPLES = [
    (0, 0, 0, None, "mixup", 0.7, None),
    (1, -1, 1, (1, 4, 2, 5), "mixup", 0.2, None),
    (0, 2, 0, (0, 2, 0, 3), "cutmix", 0.6, (0, 5)),
    (-2, 0, 1, None, "cutmix", 0.3, (3, 3)),
    (0, 0, 0, (3, 5, 1, 2), "none", 1.0, None),
    (0, 0, 1, None, "none", 1.0, None),
    (1, 1, 0, None, "cutmix", 0.05, (2, 2)),
    (0, 0, 0, None, "cutmix", 0.99, (4, 4)),
]


def box_of(weight, row, column, height, width):
    """Returns the box and the weight of torchvision's CutMix for a weight and a center."""
    cutmix = v2.CutMix(num_classes=CLASSES)
    cutmix._dist = mock.Mock(sample=lambda shape: torch.tensor([weight], dtype=torch.float64))
    draws = iter([torch.tensor([column]), torch.tensor([row])])
    with mock.patch("torch.randint", lambda *a, **b: next(draws)):
        made = cutmix.make_params([torch.empty(2, 1, height, width)])
    left, top, right, bottom = made["box"]
    return [top, bottom, left, right], made["lam_adjusted"]


def mixed(batch, labels, row, sample):
    """Returns the mixed image and target of a row: torchvision mixes neighbors of a batch."""
    _, _, _, _, mix, weight, center = sample
    pair = [row ^ 1, row]
    x, y = batch[pair], labels[pair]
    if mix == "none":
        return x[1], nn.one_hot(y, CLASSES)[1].float(), None, 1.0
    box = None
    params = {"labels": y, "batch_size": 2, "lam": weight}
    transform = v2.MixUp(num_classes=CLASSES)
    if mix == "cutmix":
        box, weight = box_of(weight, *center, HEIGHT, WIDTH)
        params["box"], params["lam_adjusted"] = (box[2], box[0], box[3], box[1]), weight
        transform = v2.CutMix(num_classes=CLASSES)
    return transform.transform(x, params)[1], transform.transform(y, params)[1], box, weight


def make():
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (BATCH, CHANNELS, HEIGHT, WIDTH), dtype=torch.uint8)
    labels = torch.tensor([0, 5, 3, 3, 2, 4, 1, 0])
    logits = (3 * torch.randn(BATCH, CLASSES, dtype=torch.float64)).float()
    prepared = []
    for image, (row, column, flip, erased, *_) in zip(pixels, SAMPLES):
        image = images.crop(image, row, column, HEIGHT, WIDTH)
        image = images.horizontal_flip(image) if flip else image
        image = images.normalize(images.to_dtype(image, torch.float32, scale=True), MEAN, STD)
        if erased:
            top, bottom, left, right = erased
            image = images.erase(image, top, left, bottom - top, right - left, torch.zeros(3, 1, 1))
        prepared.append(image)
    prepared = torch.stack(prepared)
    results = [mixed(prepared, labels, row, sample) for row, sample in enumerate(SAMPLES)]
    targets = torch.stack([result[1] for result in results]).double()
    x = logits.double().requires_grad_()
    loss = nn.cross_entropy(x, targets, reduction="sum", label_smoothing=SMOOTHING)
    loss.backward()

    def numbers(tensor):
        return [float("%.9g" % value) for value in tensor.flatten()]

    return {
        "made_by": "torch %s" % torch.__version__,
        "mean": MEAN,
        "std": STD,
        "pixels": pixels.permute(0, 2, 3, 1).flatten().tolist(),
        "shape": [BATCH, HEIGHT, WIDTH, CHANNELS],
        "samples": [
            {
                "row": sample[0],
                "column": sample[1],
                "flip": sample[2],
                "erased": sample[3] or [0, 0, 0, 0],
                "mix": sample[4],
                "pasted": result[2] or [0, 0, 0, 0],
                "weight": result[3],
            }
            for sample, result in zip(SAMPLES, results)
        ],
        "mixed": numbers(torch.stack([result[0] for result in results]).permute(0, 2, 3, 1)),
        "labels": labels.tolist(),
        "logits": numbers(logits),
        "smoothing": SMOOTHING,
        "loss": loss.item(),
        "gradient": numbers(x.grad),
        "boxes": [
            {"draw": [weight, row, column, height, width], "range": box, "weight": kept}
            for weight in (0.0, 0.1, 0.5, 0.9, 1.0)
            for height, width, row, column in (
                (32, 32, 0, 31),
                (32, 32, 16, 16),
                (7, 50, 3, 2),
                (224, 224, 200, 100),
            )
            for box, kept in [box_of(weight, row, column, height, width)]
        ],
    }


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "reference", "mix.json")
    with open(path, "w") as file:
        lines = ['%s: %s' % (json.dumps(k), json.dumps(v)) for k, v in make().items()]
        file.write("{\n%s\n}\n" % ",\n".join(lines))


if __name__ == "__main__":
    main()
