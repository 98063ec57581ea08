#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the network of inputs/examples/chain_vgg.toml in PyTorch.

chain_in_torch.py WEIGHTS PREDICTIONS IMAGES

Loads WEIGHTS, a file of `trireme export`, and compares the logits with those in PREDICTIONS, of
`trireme evaluate --predictions FILE --logits` on the test set. IMAGES: the file of the test set's
images in the IDX format (gzip). Exit status 1 if a logit differs by more than 1e-5 of the largest.
Needs torch, safetensors, h5py and numpy.
"""

import argparse
import gzip
import sys

import h5py
import numpy
import torch
from safetensors.torch import load_file
from torch import nn


def conv(inputs, outputs):
    return (
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.ReLU(),
    )


class Vgg(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(
            *conv(1, 32),
            *conv(32, 32),
            nn.MaxPool2d(2),
            *conv(32, 64),
            *conv(64, 64),
            nn.MaxPool2d(2),
            *conv(64, 128),
            *conv(128, 128),
            nn.AdaptiveAvgPool2d(1),
            nn.Sequential(nn.Flatten(), nn.Dropout(0.2)),
            nn.Linear(128, 10),
        )

    def forward(self, images):
        return self.blocks(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("weights", "predictions", "images"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    model = Vgg().eval()
    model.load_state_dict(load_file(arguments.weights))
    with gzip.open(arguments.images) as file:
        pixels = numpy.frombuffer(file.read()[16:], numpy.uint8).reshape(-1, 1, 28, 28)
    images = (torch.from_numpy(pixels.copy()).float() / 255 - 0.2860) / 0.3530
    with h5py.File(arguments.predictions) as file:
        expected = torch.from_numpy(file["logits"][:])
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(500)])
    difference = ((logits - expected).abs().max() / expected.abs().max()).item()
    print("%d images: logits differ by at most %.1e of the largest" % (len(logits), difference))
    return 0 if difference < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
